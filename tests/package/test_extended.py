# SPDX-License-Identifier: Apache-2.0
"""The list of what CI leaves out names tests that exist."""

import re

import pytest

from tests.conftest import ROOT
from tests.extended import LEFT_OUT, is_extended


@pytest.mark.parametrize("path", LEFT_OUT)
def test_listed_tests_exist(path):
    names = re.findall(r"^def (test_\w+)", (ROOT / "tests" / f"{path}.py").read_text(), re.MULTILINE)
    for pattern in LEFT_OUT[path]:
        function = pattern.split(r"\[")[0]
        ends = ".*" if function.startswith(".*") else ""
        assert any(re.fullmatch(function + ends, name) for name in names), pattern


def test_parameters_choose_among_the_cases_of_a_test():
    assert is_extended("tests/end_to_end/test_recordings.py::test_the_ranks_of_a_recorded_run[v3td]")
    assert not is_extended("tests/end_to_end/test_recordings.py::test_the_ranks_of_a_recorded_run[td2]")
    assert not is_extended("tests/job/test_job.py::test_the_ranks_of_a_recorded_run[v3td]")
