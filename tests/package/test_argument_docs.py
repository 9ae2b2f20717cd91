# SPDX-License-Identifier: Apache-2.0
"""Descriptions of arguments and attributes say what these are."""

import re

from tests.conftest import ROOT

_NO_NOUN = re.compile(r"^\s+\w+: Of ")


def test_a_description_begins_with_what_it_describes():
    paths = [path for folder in ("src", "recipes") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 300
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _NO_NOUN.match(line)
    ]
    assert found == []
