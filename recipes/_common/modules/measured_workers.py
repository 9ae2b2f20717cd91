# SPDX-License-Identifier: Apache-2.0
"""``num_workers: auto``: the number of loader processes with which the first steps are fastest."""

from __future__ import annotations

import logging
import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_sagemaker.callbacks import DataWait
from lightning_sagemaker.collectives.agreement import of_all
from lightning_sagemaker.preflight import unusable_shared_memory
from lightning_sagemaker.recipes._common.data.data_module import data_of
from lightning_sagemaker.recipes._common.modules.speed import cores_of_each
from lightning_sagemaker.recovery.supervised import is_supervised

_log = logging.getLogger(__name__)

_ENOUGH = 0.02
"""Share of a step spent waiting for data up to which no other number is tried."""
_GAIN = 0.03
"""Relative gain in step time for a number to count as better: repeated measurements differ by 1 to 2%."""
_NEAR = 0.3
"""Relative difference in step time up to which two numbers are measured a second time."""
_WARM_UP = 5
"""Steps that are not measured after a change: workers start, and nothing has been fetched in advance."""
_FEWEST, _MOST = 20, 1000
"""Least and most steps that are measured with a number; in between, as many as take _SECONDS."""
_SECONDS = 2.0


class WorkerSearch:
    """Doubles the number of workers while steps get faster, else halves it while they do.

    Those near the fastest are measured twice, and the faster measurement counts: other work on the host only slows steps.

    Args:
        first: Number to start with.
        limit: Highest number to try.

    Attributes:
        number: Number to use now.
        done: Whether the search is over.
        found: Number -> seconds per step, and the share of them spent waiting for data.

    """

    def __init__(self, first: int, limit: int) -> None:
        self.first = self.number = first
        self.done = False
        self.found: dict[int, tuple[float, float]] = {}
        self._limit = limit
        self._twice: set[int] = set()

    def tell(self, seconds: float, wait: float) -> None:
        """Add the seconds per step with :attr:`number` and the share of them spent waiting for data; set the next."""
        if self.number in self.found:
            self._twice.add(self.number)
        self.found[self.number] = min(self.found.get(self.number, (math.inf, 1.0)), (seconds, wait))
        best = min(self.found, key=lambda number: self.found[number][0])
        if self.found[best][0] > self.found[self.first][0] * (1 - _GAIN):
            best = self.first
        following = [] if self.found[best][1] <= _ENOUGH else self._untried(best) or self._doubtful(best)
        self.done = not following
        self.number = following[0] if following else best

    def _untried(self, best: int) -> list[int]:
        more, fewer = max(1, 2 * best), best // 2
        candidates = [more] if best > self.first else [fewer] if best < self.first else [more, fewer]
        return [number for number in candidates if number not in self.found and number <= self._limit]

    def _doubtful(self, best: int) -> list[int]:
        near = [number for number in self.found if self.found[number][0] <= self.found[best][0] * (1 + _NEAR)]
        return [number for number in near if number not in self._twice] if len(near) > 1 else []


class MeasuredWorkers(Callback):
    """Measures training steps with a few numbers of workers, keeps the fastest, and logs the result.

    All ranks try and keep the same numbers at the same steps. The batches do not depend on them. Nothing is tried
    where training does not wait for its data, where loader processes cannot pass batches, and under a supervisor,
    where ranks may be lost during a measurement.

    Args:
        wait: Measures the waiting for data; must come before this callback in the trainer's list.

    """

    def __init__(self, wait: DataWait) -> None:
        self._wait = wait
        self._search: WorkerSearch | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the search if ``num_workers`` is ``auto``."""
        data = data_of(trainer)
        self._search = None
        if data is not None and data.measures_workers and not is_supervised() and unusable_shared_memory() is None:
            limit = max(4, 2 * cores_of_each(trainer.num_devices))
            self._search = WorkerSearch(data.num_workers, limit)
        self._begin_window()

    def _begin_window(self) -> None:
        self._steps, self._length = 0, 0
        self._before = (0.0, 0.0)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step; at the end of a window, decide by the measurements of the slowest rank."""
        if self._search is None or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        self._steps += 1
        waited, spent = (now - then for now, then in zip(self._wait.seconds, self._before, strict=True))
        if self._steps == _WARM_UP:
            self._before = self._wait.seconds
        elif self._steps == _WARM_UP + _FEWEST:
            slowest = max(of_all(spent / _FEWEST, trainer.world_size))
            self._length = min(_MOST, max(_FEWEST, math.ceil(_SECONDS / slowest)))
        if self._length and self._steps == _WARM_UP + self._length:
            measured = of_all((spent / self._length, waited / spent), trainer.world_size)
            self._decide(trainer, max(seconds for seconds, _ in measured), max(share for _, share in measured))

    def _decide(self, trainer: Trainer, seconds: float, wait: float) -> None:
        search, data = self._search, data_of(trainer)
        assert search is not None
        assert data is not None
        search.tell(seconds, wait)
        data.num_workers = search.number
        self._begin_window()
        if search.done:
            self._search = None
            if trainer.is_global_zero:
                _log.info("%s", describe(search))


def describe(search: WorkerSearch) -> str:
    """The result of a search, in one line."""
    tried = ", ".join(
        f"{number}: {seconds * 1000:.3g} ms, {wait:.1%} waiting for data"
        for number, (seconds, wait) in sorted(search.found.items())
    )
    verb = "stays" if search.number == search.first else f"after {search.first}"
    return f"num_workers {search.number} {verb}: step time with {tried}"
