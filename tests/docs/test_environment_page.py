# SPDX-License-Identifier: Apache-2.0
"""docs/environment.md names the variables that ``job/`` reads, and all of this package's own."""

import ast
import re

import pytest

from tests.conftest import ROOT

SOURCE = ROOT / "src" / "lightning_sagemaker"
PAGE = (ROOT / "docs" / "environment.md").read_text()
OWN = re.compile(r"LIGHTNING_SAGEMAKER_[A-Z_]*[A-Z]")


def variables_of_job() -> list[str]:
    """Variables as texts in ``job/``, parts of f-strings too: capitals that are no names of the module itself."""
    texts, names = set(), set()
    for path in (SOURCE / "job").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.Name):
                names.add(node.id)
    return sorted(text for text in texts - names if re.fullmatch(r"[A-Z][A-Z0-9_]{3,}", text))


@pytest.mark.parametrize("name", variables_of_job())
def test_the_page_names_every_variable_that_job_reads(name):
    end = "" if name.endswith("_") else r"(?![A-Z0-9_])"  # an f-string's beginning
    assert re.search(rf"(?<![A-Z0-9_]){name}{end}", PAGE), f"job/ reads {name}: say in docs/environment.md what for"


def test_the_page_has_the_variables_of_this_package():
    read = {name for path in SOURCE.rglob("*.py") for name in OWN.findall(path.read_text())}
    named = set(OWN.findall(PAGE))
    assert sorted(read - named) == [], "add them to docs/environment.md, in the tables at its end"
    assert sorted(named - read) == [], "docs/environment.md names variables that the source does not have"
