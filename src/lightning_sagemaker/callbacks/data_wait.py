# SPDX-License-Identifier: Apache-2.0
"""Measures how long training waits for data, which shows whether loaders or the model are the bottleneck."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.guard import TakenOver
from lightning_sagemaker._compat.trainer import log_interval
from lightning_sagemaker._lightning import Callback
from lightning_sagemaker.callbacks.copied_by_arguments import CopiedByArguments
from lightning_sagemaker.collectives.agreement import of_all

if TYPE_CHECKING:
    from lightning_sagemaker._types import LightningModule, Trainer

_log = logging.getLogger(__name__)

_MUCH = 0.05
"""Fraction of the time above which the loader counts as a bottleneck."""
_NAMED = 4
"""Maximum number of ranks in the log line, the slowest first."""


class DataWait(CopiedByArguments, Callback):
    """Logs ``data_wait``, the fraction of the step time that a rank waits for its loader; 0 is best.

    The value of rank zero is logged at each logged step. At the end one line lists the slowest ranks, as all others
    wait for them. The first batch of a fit, for which workers start, is not counted, nor is validation.

    Attributes:
        shares: The fraction of each rank, after a fit.

    """

    def __init__(self) -> None:
        self.shares: list[float] = []
        self._taken = TakenOver()
        self._reset()

    def _reset(self) -> None:
        self._waited = self._spent = 0.0
        self._recent = (0.0, 0.0)
        self._begin = self._come = 0.0
        self._batches = 0

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of waiting, and seconds of steps including their waiting, so far in this fit."""
        return self._waited, self._spent

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hook into the loops' requests for a batch, and the arrival of batches."""
        self._reset()
        loop = trainer.fit_loop.epoch_loop
        self._taken.restore()
        self._taken.take(loop, "_on_before_fetch", lambda call: self._noting("_begin", call))
        self._taken.take(loop, "_on_after_fetch", lambda call: self._noting("_come", call))

    def _noting(self, name: str, call: Callable[[], None]) -> Callable[[], None]:
        def noted() -> None:
            setattr(self, name, time.perf_counter())
            call()

        return noted

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Count the batch, and log at each logged step."""
        self._batches += 1
        if self._batches > 1 and self._begin:
            self._waited += self._come - self._begin
            self._spent += time.perf_counter() - self._begin
        every = log_interval(trainer)
        if (batch_idx + 1) % trainer.accumulate_grad_batches or trainer.global_step % every:
            return
        waited, spent = (now - before for now, before in zip((self._waited, self._spent), self._recent, strict=True))
        if spent:
            pl_module.log("data_wait", waited / spent)
            self._recent = self._waited, self._spent

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log which ranks have waited. Collective."""
        own = self._waited / self._spent if self._spent else 0.0
        self.shares = of_all(own, trainer.world_size)
        worst = sorted(((share, rank) for rank, share in enumerate(self.shares)), reverse=True)
        if not trainer.is_global_zero or not self._spent:
            return
        ranks = ", ".join(f"rank {rank} {share:.1%}" for share, rank in worst[:_NAMED])
        hint = " HINT: more or faster loader workers; all ranks wait for the slowest." if worst[0][0] > _MUCH else ""
        _log.info("waiting for data took %s of the step time.%s", ranks, hint)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the loops."""
        self._taken.restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """As :meth:`teardown`, which is not called then."""
        self._taken.restore()
