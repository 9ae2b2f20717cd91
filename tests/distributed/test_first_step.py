# SPDX-License-Identifier: Apache-2.0
"""Sharded optimizers are saved and resumed as they are: before their first step, and where they have no state."""

import itertools
import json
from pathlib import Path

import pytest

from tests.conftest import fork_ranks

WORKER = Path(__file__).with_name("first_step_worker.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first_step")
    fork_ranks(WORKER, folder, processes=2)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("form", ["file", "parts", "background", "fabric-file", "fabric-parts"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_saving_changes_nothing_and_a_resumed_job_equals_one_left_alone(results, optimizer, form, after):
    runs = results[f"{optimizer}-{form}-{after}"]
    assert all(first == second for first, second in itertools.pairwise(runs))
