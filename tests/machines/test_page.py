# SPDX-License-Identifier: Apache-2.0
"""The page about machines says what the tests hold."""

import subprocess

from tests.conftest import ROOT
from tests.machines.page import MACHINES, OTHER_SYSTEMS


def test_the_results_are_those_of_the_tests():
    page = (ROOT / "docs" / "machines.md").read_text()
    assert MACHINES in page
    assert [line for line in page.splitlines() if line.startswith("|")] == OTHER_SYSTEMS.splitlines()


def test_no_two_files_differ_in_case_only():
    """A Mac's and Windows' file systems ignore it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.splitlines() or [str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*")]
    assert len(names) > 100
    assert len({name.lower() for name in names}) == len(names)
