# SPDX-License-Identifier: Apache-2.0
"""A case of each kind of those that `make chaos-recovery` runs: a rank dies, and the job equals the one left alone."""

from __future__ import annotations

import random
import sys

import pytest

from tests.chaos.covering import finished
from tests.chaos.fabric_array import FABRIC
from tests.chaos.recovery_array import FIXED, LEVELS, SPACES, run_case

CHOSEN = (
    ("in job", {"data": "collate", "workers": 1, "persistent": True, "evaluates": "persistent", "phase": "train_step"}),
    ("in job", {"extra": "loads_averages", "phase": "validation", "model": "dropout"}),
    ("in job", {"extra": "exchanges_values", "phase": "validation", "ranks": 3, "to": "last_rank"}),
    ("in job", {"extra": "exchanges_pointers", "phase": "validation", "again": True}),
    ("restarts", {"extra": "ema", "checkpoint": "every_steps", "phase": "epoch_end", "to": "last_rank"}),
)
_PLAIN = {"model": "batchnorm", "accumulate": 3, "val": "half", "schedule": "plateau", "metrics": "torchmetrics"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
@pytest.mark.parametrize(("mode", "levels"), CHOSEN)
def test_a_job_whose_rank_dies_equals_one_that_is_left_alone(mode, levels, tmp_path):
    plain = {name: levels[0] for name, levels in LEVELS.items()} | FIXED
    case = plain | _PLAIN | levels
    assert SPACES["all"].valid(case)
    result = run_case(0, finished(case, random.Random(0)), tmp_path)
    assert (result.problems, result.mode) == ([], mode)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")
@pytest.mark.parametrize(
    "levels",
    [
        {"phase": "backward", "accumulate": "each", "backwards": 2, "model": "batchnorm", "to": "last_rank"},
        {"phase": "forward", "ranks": 3, "collective": "normalized", "model": "dropout", "again": True},
    ],
    ids=lambda levels: levels["phase"],
)
def test_a_loop_whose_rank_dies_equals_one_that_is_left_alone(levels, tmp_path):
    case = {name: found[0] for name, found in FABRIC.factors.items()} | levels
    assert FABRIC.valid(case)
    result = run_case(0, FABRIC.finish(case, random.Random(0)), tmp_path)
    assert (result.problems, result.mode) == ([], "in job")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPACES)
def test_the_array_has_every_pair_of_levels(kind):
    covered, possible = SPACES[kind].coverage(SPACES[kind].cases(0, 1))
    assert covered == possible > 1000
