# SPDX-License-Identifier: Apache-2.0
"""What interrupted runs differ in, and a set of cases in which each possible pair of levels comes at least once."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Any

from allpairspy import AllPairs

from tests.chaos.program_data import BATCH_SIZE, samples_of

Case = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]

FACTORS: dict[str, tuple[Any, ...]] = {
    "phase": (
        *("setup", "sanity", "train_epoch_start", "train_step", "accumulation", "optimizer_step"),
        *("validation", "checkpoint", "epoch_end", "test", "predict"),
    ),
    "data": (
        *("shuffled", "epoch_sampler", "random_sampler", "uneven", "iterable"),
        *("resumable", "combined_max", "combined_min", "augmented", "collate"),
    ),
    "val": ("none", "epoch", "half", "batches", "second_epoch"),
    "schedule": ("none", "step", "epoch", "plateau", "warmup"),
    "checkpoint": ("none", "every_steps", "top_k", "epoch_last", "time"),
    "to": ("rank0", "last_rank", "all", "launcher", "group"),
    "signal": ("SIGTERM", "SIGINT", "SIGUSR1", "SIGKILL"),
    "end": ("steps", "epochs", "time", "early_stopping"),
    "extra": ("none", "ema", "swa", "early_stopping", "loads_averages", "exchanges_values", "exchanges_pointers"),
    "strategy": ("auto", "ddp", "smddp", "sagemaker"),
    "ranks": (1, 2, 3, 4),
    "launcher": ("direct", "torchrun", "own"),
    "accumulate": (1, 3, "scheduler"),
    "optimization": ("automatic", "manual", "manual_two"),
    "resize": ("same", "ranks", "accumulate"),
    "workers": (0, 1, 3),
    "persistent": (False, True),
    "context": ("fork", "forkserver"),
    "limit_train": (1.0, 8),
    "limit_val": (1.0, 2),
    "sanity": (0, 2),
    "metrics": ("log", "torchmetrics"),
    "model": ("dropout", "batchnorm"),
    "save": ("none", "often"),
    "again": (False, True),
    "overhead": (1.0, 0.05),
}

_MANUAL, _RESIZED, _MANY = ("manual", "manual_two"), ("ranks", "accumulate"), (2, 3, 4)
FORBIDDEN: tuple[dict[str, tuple[Any, ...]], ...] = (
    # What needs a validation.
    {"val": ("none",), "phase": ("validation", "sanity")},
    {"val": ("none",), "sanity": (2,)},
    {"val": ("none",), "limit_val": (2,)},
    {"sanity": (0,), "phase": ("sanity",)},
    # What Lightning refuses.
    {"data": ("iterable",), "val": ("half",)},
    {"optimization": _MANUAL, "accumulate": (3, "scheduler")},
    {"accumulate": ("scheduler",), "schedule": ("warmup",)},
    {"end": ("early_stopping",), "extra": ("early_stopping",)},
    # A warm-up over no known number of steps.
    {"end": ("time",), "schedule": ("warmup",)},
    {"data": ("iterable",), "schedule": ("warmup",), "end": ("epochs", "early_stopping")},
    # Weights are averaged over epochs of a known number, with one optimizer; statistics of batches in a pass with an end.
    {"extra": ("swa",), "end": ("steps", "time")},
    {"extra": ("swa",), "optimization": _MANUAL},
    {"extra": ("swa",), "model": ("batchnorm",), "data": ("iterable",)},
    # Places that never come.
    {"accumulate": (1,), "phase": ("accumulation",)},
    {"checkpoint": ("none",), "save": ("none",), "phase": ("checkpoint",)},
    {
        "checkpoint": ("none",),
        "overhead": (0.05,),
        "phase": ("checkpoint",),
    },  # a run is too short to be asked so seldom
    # Lightning writes none by the clock there.
    {"checkpoint": ("time",), "optimization": _MANUAL, "save": ("none",), "phase": ("checkpoint",)},
    # Options of workers that are not there.
    {"workers": (0,), "persistent": (True,)},
    {"workers": (0,), "context": ("forkserver",)},
    # Each rank's server imports torch, for seconds.
    {"context": ("forkserver",), "ranks": (3, 4)},
    {"context": ("forkserver",), "end": ("time",)},
    # Its place follows from the number of steps, so that must say what was trained on.
    {"data": ("resumable",), "accumulate": ("scheduler",)},
    {"data": ("resumable",), "optimization": ("manual_two",)},
    # Launchers.
    {"launcher": ("direct",), "ranks": _MANY},
    {"launcher": ("own",), "ranks": (1,)},
    {"launcher": ("direct", "own"), "to": ("launcher",)},
    {"strategy": ("auto",), "ranks": _MANY},
    {"strategy": ("auto",), "launcher": ("torchrun",)},
    {"ranks": (1,), "to": ("last_rank",)},
    {"end": ("time",), "phase": ("test", "predict")},  # the start before them has come to its end, by the clock
    # Another size: what counts batches would count others.
    {"resize": ("ranks",), "ranks": (3,)},
    {"resize": ("ranks",), "launcher": ("direct",)},
    {"resize": ("ranks",), "ranks": (2,), "launcher": ("own",)},
    {"resize": _RESIZED, "limit_train": (8,)},
    {"resize": _RESIZED, "val": ("batches",)},
    {"resize": _RESIZED, "end": ("time",)},
    {"resize": ("accumulate",), "accumulate": ("scheduler",)},
    {"resize": ("accumulate",), "optimization": _MANUAL},
    {"resize": ("accumulate",), "data": ("uneven",), "model": ("batchnorm",)},  # a last batch of one sample
)

_LAST = {"setup": 1, "sanity": 2, "train_epoch_start": 2, "train_step": 18, "accumulation": 8, "optimizer_step": 6}
_LAST |= {"validation": 4, "checkpoint": 2, "epoch_end": 2, "test": 4, "predict": 4}
"""How often each phase comes for sure."""


_WORTH = 15
"""New pairs of a row, at least."""


@dataclasses.dataclass(frozen=True)
class Space:
    """All cases.

    Attributes:
        factors: Levels of each.
        forbidden: What cannot be run: factors with the levels that do not go together.
        finish: Adds what follows from the levels.

    """

    factors: dict[str, tuple[Any, ...]]
    forbidden: tuple[dict[str, tuple[Any, ...]], ...]
    finish: Callable[[Case, random.Random], Case]

    def valid(self, case: Case) -> bool:
        """Whether a case, or a part of one, can be run."""
        return not any(all(case.get(name) in levels for name, levels in rule.items()) for rule in self.forbidden)

    def cases(self, seed: int, least: int) -> list[Case]:
        """Whole cases; the same for the same seed."""
        rng = random.Random(seed)
        found: list[Case] = []
        while len(found) < least:
            found += self._array(rng)
        missing = self._possible_pairs(rng) - self._pairs(found)
        while missing:
            case = self._completed(dict(min(missing, key=str)), rng)
            assert case is not None
            found.append(case)
            missing -= self._pairs([case])
        return [self.finish(case, rng) for case in found]

    def coverage(self, some: Iterable[Case]) -> tuple[int, int]:
        """Pairs of levels that come in these cases, and those that could."""
        possible = self._possible_pairs(random.Random(0))
        return len(self._pairs(some) & possible), len(possible)

    def _array(self, rng: random.Random) -> Iterator[Case]:
        """The part of a covering array that is worth most, by levels in another order each time.

        Its last rows have a pair or two that are new, and the first level of all else. The caller adds cases for those.
        """
        seen: set[Pair] = set()
        levels = [rng.sample(values, len(values)) for values in self.factors.values()]
        for row in AllPairs(levels, filter_func=lambda row: self.valid(dict(zip(self.factors, row, strict=False)))):
            case = dict(zip(self.factors, row, strict=True))
            new = self._pairs([case]) - seen
            if len(new) < _WORTH:
                return
            seen |= new
            yield case

    def _completed(self, part: Case, rng: random.Random) -> Case | None:
        """A valid case with these levels, if there is one."""
        if not self.valid(part):
            return None
        left = [name for name in self.factors if name not in part]
        if not left:
            return part
        # The factor with the fewest levels left first, or the search may go on for long in what is impossible.
        options = {name: [one for one in self.factors[name] if self.valid(part | {name: one})] for name in left}
        name = min(left, key=lambda one: len(options[one]))
        for level in rng.sample(options[name], len(options[name])):
            if found := self._completed(part | {name: level}, rng):
                return found
        return None

    def _pairs(self, some: Iterable[Case]) -> set[Pair]:
        return {pair for case in some for pair in combinations([(name, case[name]) for name in self.factors], 2)}

    def _possible_pairs(self, rng: random.Random) -> set[Pair]:
        """Those for which a valid case is found; each case that is found has many."""
        levels = [(name, level) for name, values in self.factors.items() for level in values]
        found: set[Pair] = set()
        for pair in combinations(levels, 2):
            if pair[0][0] != pair[1][0] and pair not in found and (case := self._completed(dict(pair), rng)):
                found |= self._pairs([case])
        return found


def finished(case: Case, rng: random.Random) -> Case:
    """With the numbers that follow from the levels."""
    from tests.chaos.program_model import steps_of

    case = case | {
        "ours": True,
        "at": rng.randint(1, _last(case)),
        "batch_size": BATCH_SIZE,
        "samples": samples_of(case),
    }
    timed = case["end"] == "time"
    return case | {"steps": steps_of(case), "seconds": 3.0, "pause": 0.02 if timed else 0.0}


INTERRUPTED = Space(FACTORS, FORBIDDEN, finished)
"""Of runs that are interrupted and started again."""


def _last(case: Case) -> int:
    """By when the phase has come."""
    last = _LAST[case["phase"]]
    if case["phase"] == "validation":
        return min(last, 2 if case["limit_val"] == 2 else 4)
    if case["phase"] == "accumulation" and case["accumulate"] == "scheduler":
        return min(last, 4)
    return 1 if case["phase"] == "checkpoint" and case["checkpoint"] != "every_steps" else last


def promise(case: Case) -> str:
    """How far the run must be the stock one: ``equal``, ``prefix``, ``samples``, or that it ``ends``."""
    if case["resize"] == "same":
        return "prefix" if case["end"] == "time" else "equal"
    return "ends" if case["data"] in ("iterable", "combined_max", "combined_min", "random_sampler") else "samples"


def resized(case: Case) -> Case:
    """For the starts after the first: another size with as many samples in a step."""
    if case["resize"] == "ranks":
        ranks = {1: 2, 2: 1, 4: 2}[case["ranks"]]
        return case | {"ranks": ranks, "batch_size": case["batch_size"] * case["ranks"] // ranks}
    if case["resize"] == "accumulate":
        accumulate, batch_size = {1: (2, BATCH_SIZE // 2), 3: (1, 3 * BATCH_SIZE)}[case["accumulate"]]
        return case | {"accumulate": accumulate, "batch_size": batch_size}
    return case


_ASIDE = {"again": False, "overhead": 1.0, "persistent": False, "context": "fork", "limit_train": 1.0, "limit_val": 1.0}
_ASIDE |= {
    "sanity": 0,
    "metrics": "log",
    "model": "dropout",
    "workers": 0,
    "resize": "same",
    "extra": "none",
    "val": "epoch",
}
_ASIDE |= {"schedule": "none", "checkpoint": "none", "accumulate": 1, "optimization": "automatic", "save": "none"}


def words(case: Case) -> str:
    """For a person: the strike, then what is not usual."""
    strike = f"{case['signal']} to {case['to']} at {case['phase']} {case['at']}"
    size = f"{case['ranks']} x {case['strategy']} by {case['launcher']}, {case['data']}, end {case['end']}"
    rest = [f"{name}={case[name]}" for name, level in _ASIDE.items() if case[name] != level]
    return "; ".join([strike, size, " ".join(rest)])
