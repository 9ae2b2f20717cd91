# SPDX-License-Identifier: Apache-2.0
"""Sends a signal when a run has come to a certain place: the same place each time the run is made."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from typing import Any

from lightning.pytorch import Callback

PHASES = (
    "setup",
    "sanity",
    "train_epoch_start",
    "train_step",
    "accumulation",
    "optimizer_step",
    "validation",
    "checkpoint",
    "epoch_end",
    "test",
    "predict",
)


class Strike(Callback):
    """A signal from within.

    Args:
        strike: ``signal``, ``phase``, ``at`` (when the phase comes for the how many-th time in this start) and ``to``:
            ``rank0``, ``last_rank``, ``all``, ``launcher``, ``group`` (all processes of the container). None: none.
        recorder: Writes down the moment.

    """

    def __init__(self, strike: dict[str, Any] | None, recorder: Any) -> None:
        self._strike, self._recorder = strike, recorder
        self._seen: Counter[str] = Counter()

    def __deepcopy__(self, memo: Any) -> Strike:
        """A copy of the module, as for averages, strikes with it."""
        return self

    def reach(self, trainer: Any, phase: str) -> None:
        self._seen[phase] += 1
        if self._strike is None or (phase, self._seen[phase]) != (self._strike["phase"], self._strike["at"]):
            return
        if pids := self._pids(trainer.global_rank, trainer.world_size):
            self._recorder.open(trainer)
            self._recorder.write("strike", **self._strike)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.Signals[self._strike["signal"]])

    def _pids(self, rank: int, ranks: int) -> list[int]:
        """Those whom this rank signals; a negative one is a group."""
        assert self._strike is not None
        launcher = os.getppid()
        match self._strike["to"]:
            case "rank0":
                return [os.getpid()] if rank == 0 else []
            case "last_rank":
                return [os.getpid()] if rank == ranks - 1 else []
            case "all":
                return [os.getpid()]
            case "launcher":
                return [launcher] if rank == 0 else []
        if not self._strike.get("has_launcher"):  # what started this process is no part of the run
            return [-os.getpgrp()] if rank == 0 else []
        if os.getpgid(launcher) == os.getpgrp():
            return [-os.getpgrp()] if rank == 0 else []
        return [-os.getpgrp(), -os.getpgid(launcher)] if rank == 0 else [-os.getpgrp()]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.reach(trainer, "setup")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.reach(trainer, "train_epoch_start")

    def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
        self.reach(trainer, "optimizer_step")

    def on_validation_batch_start(self, trainer: Any, *_: Any) -> None:
        self.reach(trainer, "sanity" if trainer.sanity_checking else "validation")

    def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
        self.reach(trainer, "checkpoint")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.reach(trainer, "epoch_end")

    def on_test_batch_start(self, trainer: Any, *_: Any) -> None:
        self.reach(trainer, "test")

    def on_predict_batch_start(self, trainer: Any, *_: Any) -> None:
        self.reach(trainer, "predict")
