# SPDX-License-Identifier: Apache-2.0
"""Samples and tokens per second, and the scaling efficiency against a recorded single-process run."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ThroughputRecord:
    """The speed of one run.

    Args:
        samples_per_second: Over all processes, without the first step, validation and checkpoints.
        tokens_per_second: The same in tokens.
        num_processes: How many processes trained together.
        steps: Optimizer steps that were timed.
        workload: What must be equal for two records to be compared.

    """

    samples_per_second: float
    tokens_per_second: float
    num_processes: int
    steps: int
    workload: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write as JSON; a reader sees the old file or the new one, never a part."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> ThroughputRecord:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: If the file is something else.

        """
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} was given as the recorded single-process run, but cannot be read as one ({error})."
                " HINT: give the throughput.json that a run with one process has written."
            ) from error


class Throughput(Callback):
    """Logs ``samples_per_second``, ``tokens_per_second`` and, given a baseline, ``scaling_efficiency``.

    The first optimizer step is not timed (it allocates and compiles). Time spent in validation and in writing
    checkpoints does not count. Every process is taken to see as many samples as this one.

    Efficiency is ``rate / (processes x rate of one process)``: 1 is perfect scaling.

    Args:
        tokens_key: The batch entry of shape ``[samples, tokens]``; ``None`` if batches are such a tensor themselves.
        record: Where a run with one process leaves its record.
        baseline: Record of a single-process run. ``None``: the file at ``record`` if there is one.

    """

    def __init__(
        self, tokens_key: str | None = "input_ids", record: Path | None = None, baseline: Path | None = None
    ) -> None:
        self._tokens_key = tokens_key
        self._record = record
        self._baseline_path = baseline
        self._baseline: ThroughputRecord | None = None
        self._total = _Window()
        self._recent = _Window()
        self._started: float | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the baseline and start anew."""
        self._total, self._recent, self._started = _Window(), _Window(), None
        self._baseline = self._find_baseline(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch, and log at each logged step."""
        stepped = trainer.fit_loop._should_accumulate() is False
        now = time.perf_counter()
        if self._started is None:
            self._started = now if stepped else None
            return
        tokens = batch if self._tokens_key is None else batch[self._tokens_key]
        for window in (self._total, self._recent):
            window.add(now - self._started, tokens, trainer.world_size, stepped)
        self._started = now
        if not self._total.workload:
            self._total.workload = self._workload(trainer, pl_module, tokens)
            self._check_baseline(trainer)
        if stepped and trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
            pl_module.log_dict(self._rates(trainer))
            self._recent = _Window()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        if self._started is not None:
            self._total.add_time(time.perf_counter() - self._started)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on with the clock."""
        self._go_on()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Leave out what other callbacks did since the last batch, but not the loading of the batch."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the record of a run with one process."""
        record = self.result(trainer)
        if record is None or self._record is None or trainer.world_size != 1:
            return
        record.save(self._record)

    def result(self, trainer: Trainer) -> ThroughputRecord | None:
        """The record of the run so far; ``None`` before its second step."""
        if not self._total.steps or not self._total.seconds:
            return None
        return ThroughputRecord(
            self._total.samples / self._total.seconds,
            self._total.tokens / self._total.seconds,
            trainer.world_size,
            self._total.steps,
            self._total.workload,
        )
