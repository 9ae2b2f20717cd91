# SPDX-License-Identifier: Apache-2.0
"""The templates, the helper of images, and the definitions of metrics."""

import json
import sys
from pathlib import Path

from lightning_sagemaker import cli
from lightning_sagemaker.launch.source.wheel import make_wheel
from tests.conftest import run_bounded


def test_templates_and_the_image_helper(tmp_path, capsys):
    assert cli.main(["template"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["role", "fsx", "tensorboard", "dockerfile"]
    for name in names[:3]:
        assert cli.main(["template", name]) == 0
        path = tmp_path / f"{name}.yaml"
        path.write_text(capsys.readouterr().out)
        lint = run_bounded([Path(sys.executable).with_name("cfn-lint"), path])
        assert lint.returncode == 0, lint.stdout
    (tmp_path / "requirements.txt").write_text("pandas\n")
    command = [
        "image",
        str(tmp_path / "image"),
        "--requirements",
        str(tmp_path / "requirements.txt"),
        "--region",
        "us-east-1",
    ]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert (
        "--build-arg BASE_IMAGE=763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312" in shown
    )
    assert {path.name for path in (tmp_path / "image").iterdir()} == {"Dockerfile", "requirements.txt", make_wheel()[0]}
    (tmp_path / "requirements.txt").write_text("torch==2.0\n")
    assert cli.main(command) == 2
    (tmp_path / "requirements.txt").write_text("")
    (tmp_path / "image" / "Dockerfile").write_text("FROM mine\n")
    assert cli.main(command) == 2
    assert (tmp_path / "image" / "Dockerfile").read_text() == "FROM mine\n"
    capsys.readouterr()
    assert cli.main(["metrics", "bert-qa", "--json"]) == 0
    assert {"val_f1", "loss"} <= {one["Name"] for one in json.loads(capsys.readouterr().out)}
