# SPDX-License-Identifier: Apache-2.0
"""A run with a skip for any other reason than those in tests/skips.py has failed."""

import sys

import pytest

from tests.conftest import ROOT, run_bounded

TESTS = """
import pytest

def test_passes():
    pass

@pytest.mark.skipif(True, reason="network namespaces need root")
def test_one(): ...

@pytest.mark.parametrize("x", [1, 2])
def test_two(x):
    pytest.skip("mounting is not permitted")

@pytest.mark.xfail
def test_fails():
    assert False
"""


def run(folder, text: str):
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-p", "tests.skips", "-p", "no:cacheprovider", str(folder)]
    done = run_bounded(command, timeout=60, PYTHONPATH=str(ROOT))
    return done.returncode, done.stdout.partition(" skipped =")[2]


def test_allowed_skips_are_listed(tmp_path):
    code, listed = run(tmp_path, TESTS)
    assert code == 0, listed
    assert "   2 mounting is not permitted\n   1 network namespaces need root\n" in listed


@pytest.mark.parametrize(
    "more",
    [
        "def test_three():\n    pytest.skip('no time')",
        "pytest.importorskip('no_such_module_anywhere')",
        "@pytest.fixture\ndef f():\n    pytest.skip('mounting is not permitted today')\ndef test_three(f): ...",
    ],
    ids=["test", "module", "fixture"],
)
def test_any_other_skip_fails_the_run(tmp_path, more):
    code, listed = run(tmp_path, f"{TESTS}\n{more}\n")
    assert code == 1, listed
    assert listed.count("not a reason in tests/skips.py") == 1
