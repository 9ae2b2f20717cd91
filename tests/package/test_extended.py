# SPDX-License-Identifier: Apache-2.0
"""The list of what CI leaves out names tests that exist."""

from types import SimpleNamespace

import pytest

from tests.conftest import ROOT
from tests.extended import LEFT_OUT, is_extended, pytest_collection_modifyitems


def test_listed_files_exist():
    assert [path for path in LEFT_OUT if not (ROOT / "tests" / f"{path}.py").is_file()] == []


def test_a_pattern_without_a_test_ends_the_run():
    config = SimpleNamespace(args=["tests"])
    kept = SimpleNamespace(nodeid="tests/end_to_end/test_recordings.py::test_the_ranks_of_a_recorded_run[td2]")
    listed = SimpleNamespace(nodeid="tests/end_to_end/test_recordings.py::test_the_ranks_of_a_recorded_run[v3td]")
    pytest_collection_modifyitems(config, [kept, listed])
    with pytest.raises(pytest.UsageError, match="v3td"):
        pytest_collection_modifyitems(config, [kept])
    pytest_collection_modifyitems(SimpleNamespace(args=[kept.nodeid]), [kept])


def test_parameters_choose_among_the_cases_of_a_test():
    assert is_extended("tests/end_to_end/test_recordings.py::test_the_ranks_of_a_recorded_run[v3td]")
    assert not is_extended("tests/end_to_end/test_recordings.py::test_the_ranks_of_a_recorded_run[td2]")
    assert not is_extended("tests/job/test_job.py::test_the_ranks_of_a_recorded_run[v3td]")
