# SPDX-License-Identifier: Apache-2.0
"""A shell script as entry point is run by the shell that it names, as in SDK 2's and SDK 3's containers."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "src" / "lightning_sagemaker" / "container"))
from lightning_driver import program  # in a container it lies in a folder of its own


@pytest.mark.parametrize(
    ("first", "shell"),
    [
        ("#!/bin/bash -e", ["/bin/bash", "-e"]),
        ("#! /usr/bin/env bash\r", ["/usr/bin/env", "bash"]),
        ("", ["/bin/sh"]),
        ("#!", ["/bin/sh"]),
    ],
)
def test_the_first_line_names_the_shell(first, shell, tmp_path, monkeypatch):
    (tmp_path / "train.sh").write_bytes(f"{first}\necho\n".encode())
    (tmp_path / "train.sh").chmod(0o644)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SM_HPS", json.dumps({"lr": 0.1}))
    assert program("train.sh") == [*shell, "train.sh", "--lr", "0.1"]


def test_a_script_for_bash_runs_where_sh_is_another_shell(tmp_path, monkeypatch):
    (tmp_path / "train.sh").write_text(
        '#!/bin/bash\nset -o pipefail\nall=("$@")\n[[ ${#all[@]} == 2 ]] && echo "${all[1]}"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SM_HPS", json.dumps({"prompt": "a b"}))
    assert subprocess.run(program("train.sh"), capture_output=True, text=True, check=True).stdout == "a b\n"
