# SPDX-License-Identifier: Apache-2.0
"""What loops of one's own with Fabric differ in, for recovery_array.py."""

from __future__ import annotations

import random
from typing import Any

from tests.chaos.covering import Case, Space

LEVELS: dict[str, tuple[Any, ...]] = {
    "phase": (
        *("epoch_start", "batch", "forward", "backward", "stepped"),
        *("evaluation", "evaluated", "epoch_end", "saved"),
    ),
    "to": ("rank0", "last_rank"),
    "again": (False, True),
    "ranks": (2, 3),
    "data": ("shuffled", "uneven", "augmented", "weighted", "drop_last"),
    "workers": (0, 1),
    "persistent": (False, True),
    "accumulate": ("none", "last", "each"),
    "zero": ("end", "begin", "keep"),
    "clip": ("none", "norm", "value", "torch"),
    "optimizer": ("adam", "momentum", "two"),
    "model": ("plain", "batchnorm", "dropout", "unused", "frozen"),
    "precision": ("32-true", "bf16-mixed"),
    "schedule": ("none", "batch", "step", "plateau"),
    "val": ("none", "epoch", "half"),
    "evaluates": ("function", "loose", "torchmetrics"),
    "collective": ("none", "mean", "gather", "normalized", "contrastive", "barrier", "broadcast", "metric"),
    "values": ("none", "counter", "list", "tensor"),
    "saves": ("none", "epoch", "batch"),
    "backwards": (1, 2),
}
_IMPOSSIBLE: tuple[dict[str, tuple[Any, ...]], ...] = (
    {"val": ("none",), "phase": ("evaluation", "evaluated")},
    {"val": ("none",), "evaluates": ("loose", "torchmetrics")},
    {"val": ("none", "half"), "schedule": ("plateau",)},
    {"workers": (0,), "persistent": (True,)},
    {"saves": ("none", "batch"), "phase": ("saved",)},
)
_OFTEN = {"epoch_start": 2, "epoch_end": 2, "saved": 2, "evaluated": 2, "evaluation": 4, "stepped": 6}
"""How often each phase comes for sure, else the number of batches."""


def _finished(case: Case, rng: random.Random) -> Case:
    every = 1 if case["accumulate"] == "none" else 2
    at = rng.randint(1, _OFTEN.get(case["phase"], 15))
    return case | {"every": every, "sync": case["accumulate"], "at": at}


FABRIC = Space(LEVELS, _IMPOSSIBLE, _finished)
