# SPDX-License-Identifier: Apache-2.0
"""Every guarantee on the page about interruptions is one that a test shows, or says that none does."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "interruptions.md").read_text()

NOT_TESTED = "not tested"


def guarantees():
    table = PAGE.split("## What is guaranteed")[1].split("\n##")[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in table.splitlines() if line.startswith("| ")]
    return rows[1:]


@pytest.mark.parametrize("row", guarantees(), ids=lambda row: row[0][:40])
def test_a_guarantee_names_the_test_that_shows_it(row):
    assert len(row) == 3
    if row[2] == NOT_TESTED:
        return
    file, _, name = row[2].strip("`").partition("::")
    tests = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}
    assert name in tests if name else any(test.startswith("test_") for test in tests)


def test_most_guarantees_are_shown():
    shown = [row for row in guarantees() if row[2] != NOT_TESTED]
    assert len(shown) >= 9
    assert len(shown) > 2 * len([row for row in guarantees() if row[2] == NOT_TESTED]) - 1


def test_the_table_of_stopping_times_has_the_phases_that_are_measured():
    from tests.chaos.stopping_times import PHASES

    table = PAGE.split("Seconds from the signal")[1].split("\n## ")[0]
    rows = {line.split("|")[1].split("(")[0].strip() for line in table.splitlines() if line.startswith("| ")}
    assert {phase.split("(")[0].strip() for phase in PHASES} == rows - {"phase"}
