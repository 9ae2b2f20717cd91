# SPDX-License-Identifier: Apache-2.0
"""Some cases of the covering array, which `make chaos` runs whole: stopped, resumed, equal to stock Lightning left alone."""

import random

import pytest

from tests.chaos.array_case import run_case
from tests.chaos.covering import FACTORS, INTERRUPTED, finished, words

_PLAIN = {"again": False, "overhead": 1.0, "persistent": False, "context": "fork", "limit_train": 1.0, "limit_val": 1.0}
_PLAIN |= {
    "sanity": 2,
    "metrics": "torchmetrics",
    "model": "batchnorm",
    "workers": 0,
    "resize": "same",
    "extra": "none",
}
_PLAIN |= {"val": "epoch", "schedule": "step", "checkpoint": "none", "accumulate": 1, "optimization": "automatic"}
_PLAIN |= {"save": "none", "end": "epochs", "signal": "SIGTERM", "to": "rank0", "strategy": "auto", "ranks": 1}
_PLAIN |= {"launcher": "direct", "data": "shuffled", "phase": "train_step"}

CHOSEN = (
    {"data": "collate", "workers": 3, "schedule": "warmup", "to": "group", "again": True},
    {"phase": "validation", "val": "half", "schedule": "plateau", "extra": "ema", "checkpoint": "top_k"},
    {"phase": "accumulation", "accumulate": 3, "val": "batches", "extra": "early_stopping", "signal": "SIGINT"},
    {"strategy": "smddp", "ranks": 3, "launcher": "torchrun", "to": "last_rank", "data": "augmented", "workers": 1},
    {"signal": "SIGKILL", "save": "often", "optimization": "manual_two", "data": "combined_max", "schedule": "none"},
    {"data": "resumable", "resize": "accumulate", "accumulate": 3, "workers": 1, "extra": "swa", "model": "dropout"},
)


@pytest.mark.parametrize("number", range(len(CHOSEN)))
def test_a_run_that_is_interrupted_equals_one_that_is_left_alone(number, tmp_path):
    case = {name: (_PLAIN | CHOSEN[number])[name] for name in FACTORS}
    assert INTERRUPTED.valid(case)
    case = finished(case, random.Random(number))
    result = run_case(number, case, tmp_path)
    assert not result.problems, (words(case), result.problems)
    assert len(result.starts) > 1


@pytest.mark.slow
def test_the_array_has_every_pair_of_levels():
    some = INTERRUPTED.cases(1, 300)
    covered, possible = INTERRUPTED.coverage(some)
    assert len(some) >= 300
    assert covered == possible > 4000
    assert all(INTERRUPTED.valid(case) for case in some)
    assert some == INTERRUPTED.cases(1, 300)
    assert not INTERRUPTED.valid(some[0] | {"ranks": 2, "launcher": "direct"})
