# SPDX-License-Identifier: Apache-2.0
"""The loop of the chaos runs, with something wrong in it: the last argument says what."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[2]))
from lightning_sagemaker import FabricSageMakerDDPStrategy
from lightning_sagemaker.recovery.fabric_loop import InJobLoop
from tests.chaos import recovery_fabric

WRONG, POISON = sys.argv.pop(), 77
if WRONG.startswith("asked "):
    WRONG = WRONG.removeprefix("asked ")
    vars(recovery_fabric)["Fabric"] = lambda strategy, **place: Fabric(
        strategy=FabricSageMakerDDPStrategy(recovery="in_job"), **place
    )


class Own(DistributedSampler[Any]):
    """An order that is dealt in a way of the script's own."""


class Poisoned(recovery_fabric.Points):
    """Whoever reads one of its samples dies."""

    def __getitem__(self, index: int) -> Any:
        if index == POISON and len(self) > 200:  # not the one of the validation
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def _loader(dataset: Any, batch_size: int, **_: Any) -> Any:
    ranks = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    return DataLoader(dataset, batch_size, sampler=Own(dataset, *ranks))


def _clip(fabric: Fabric, model: Any, optimizer: Any, **_: Any) -> None:
    if WRONG == "closure":
        optimizer.step(lambda: None)
    optimizer.step()
    fabric.backward(next(model.parameters()).sum())


def _twice(self: InJobLoop, *args: Any) -> Any:
    yield from BATCHES(self, *args)
    yield from BATCHES(self, *args)


BATCHES = InJobLoop.batches
if WRONG == "loops":
    type.__setattr__(InJobLoop, "batches", _twice)
elif WRONG == "sampler":
    vars(recovery_fabric)["DataLoader"] = _loader
elif WRONG == "poison":
    vars(recovery_fabric)["Points"] = Poisoned
else:
    Fabric.clip_gradients = _clip
recovery_fabric.main()
