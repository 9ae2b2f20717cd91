# SPDX-License-Identifier: Apache-2.0
"""Samples and tokens per second, and the scaling efficiency against a recorded single-process run."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from lightning_sagemaker._compat.trainer import log_interval
from lightning_sagemaker._lightning import Callback
from lightning_sagemaker.text_files import write_text

if TYPE_CHECKING:
    from lightning_sagemaker._types import LightningModule, StateDict, Trainer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ThroughputRecord:
    """The speed of one run.

    Args:
        samples_per_second: Samples per second over all processes, without the first step and validation.
        tokens_per_second: The same in tokens.
        num_processes: World size.
        steps: Optimizer steps that were timed.
        workload: Properties that must be equal for two records to be comparable.

    """

    samples_per_second: float
    tokens_per_second: float
    num_processes: int
    steps: int
    workload: dict[str, object]

    def save(self, path: Path) -> None:
        """Write the record as JSON, atomically."""
        write_text(path, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> ThroughputRecord:
        """Read a record that :meth:`save` has written.

        Raises:
            ValueError: If the file is not a record.

        """
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} was given as the single-process baseline, but cannot be read as one ({error}). HINT:"
                " give the throughput.json of a run with one process."
            ) from error


@dataclass
class _Window:
    """Counts within a time window."""

    seconds: float = 0.0
    samples: int = 0
    tokens: int = 0
    steps: int = 0


class Throughput(Callback):
    """Logs ``samples_per_second``, ``tokens_per_second`` and, given a baseline, ``scaling_efficiency``.

    The first optimizer step is not timed (it allocates and compiles), nor is validation. Every process is assumed to
    process as many samples as this one.

    Efficiency is ``rate / (processes x rate of one process)``: 1 is perfect scaling.

    Args:
        tokens_key: Key of the batch entry of shape ``[samples, tokens]``; ``None`` if batches are such a tensor themselves.
        record: File for the record of a run with one process.
        baseline: Record of a single-process run. Default: the file at ``record``, if it exists.

    """

    def __init__(
        self, tokens_key: str | None = "input_ids", record: Path | None = None, baseline: Path | None = None
    ) -> None:
        self._tokens_key = tokens_key
        self._record = record
        self._baseline_path = baseline
        self._reset()

    def _reset(self) -> None:
        self._baseline: ThroughputRecord | None = None
        self._workload: dict[str, object] | None = None
        self._total, self._recent = _Window(), _Window()
        self._last_step = 0
        self._clock: float | None = None  # None until the end of the first step, and during validation

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset."""
        self._reset()
        self._last_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Count the batch, and log at each logged step."""
        tokens = self._tokens(batch)
        stepped = trainer.global_step != self._last_step
        self._last_step = trainer.global_step
        if self._workload is None:
            self._workload = _workload(trainer, pl_module, tokens)
            self._baseline = self._find_baseline(trainer, self._workload)
        if self._clock is None and not stepped:
            return
        if self._clock is not None:
            self._stop_clock()
            replicas = _replicas(trainer)
            for window in (self._total, self._recent):
                window.samples += tokens.shape[0] * replicas
                window.tokens += tokens.numel() * replicas
                window.steps += int(stepped)
        self._clock = time.perf_counter()
        every = log_interval(trainer)
        if stepped and self._recent.seconds and trainer.global_step % every == 0:
            pl_module.log_dict(self._rates(trainer.world_size))
            self._recent = _Window()

    def _tokens(self, batch: object) -> torch.Tensor:
        if self._tokens_key is None:
            return cast(torch.Tensor, batch)
        return cast(Mapping[str, torch.Tensor], batch)[self._tokens_key]

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pause the timer."""
        self._stop_clock()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Resume the timer, if it was running."""
        if self._total.steps:
            self._clock = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the record of a run with one process."""
        result = self.result(trainer.world_size)
        if result is not None and self._record is not None and trainer.world_size == 1:
            result.save(self._record)

    def result(self, num_processes: int) -> ThroughputRecord | None:
        """The record of the run so far; ``None`` before its second step."""
        total = self._total
        if not total.steps or self._workload is None:
            return None
        rates = (total.samples / total.seconds, total.tokens / total.seconds)
        return ThroughputRecord(*rates, num_processes, total.steps, self._workload)

    @property
    def step_seconds(self) -> float | None:
        """Mean time of an optimizer step so far; ``None`` before the second."""
        return self._total.seconds / self._total.steps if self._total.steps else None

    def efficiency(self, num_processes: int) -> float | None:
        """Scaling efficiency of the run so far; ``None`` without a baseline of the same workload."""
        result = self.result(num_processes)
        if result is None or self._baseline is None:
            return None
        return result.samples_per_second / (num_processes * self._baseline.samples_per_second)

    def _stop_clock(self) -> None:
        if self._clock is None:
            return
        elapsed = time.perf_counter() - self._clock
        self._clock = None
        self._total.seconds += elapsed
        self._recent.seconds += elapsed

    def _rates(self, num_processes: int) -> dict[str, float]:
        recent = self._recent
        rates = {
            "samples_per_second": recent.samples / recent.seconds,
            "tokens_per_second": recent.tokens / recent.seconds,
        }
        if self._baseline is not None:
            one = self._baseline.samples_per_second
            rates["scaling_efficiency"] = rates["samples_per_second"] / (num_processes * one)
        return rates

    def _find_baseline(self, trainer: Trainer, workload: dict[str, object]) -> ThroughputRecord | None:
        """The baseline, if it is comparable with this run; logs why not otherwise."""
        path = self._baseline_path or self._record
        if trainer.world_size == 1 or path is None or (self._baseline_path is None and not path.is_file()):
            return None
        record = ThroughputRecord.load(path)
        differing = sorted(k for k in workload if record.workload.get(k) != workload[k])
        if differing or record.num_processes != 1:
            what = [f"{k}: {record.workload.get(k)} there, {workload[k]} here" for k in differing]
            what += [f"{record.num_processes} processes there"] if record.num_processes != 1 else []
            if trainer.is_global_zero:
                _log.info("no scaling efficiency: %s is from a different workload (%s)", path, "; ".join(what))
            return None
        if trainer.is_global_zero:
            _log.info("scaling efficiency against %s (%.4g samples/s)", path, record.samples_per_second)
        return record


def _workload(trainer: Trainer, module: LightningModule, tokens: torch.Tensor) -> StateDict:
    """Properties that determine the speed of one process, apart from the world size."""
    on_cpu = tokens.device.type == "cpu"
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "sequence_length": tokens.shape[-1],
        "precision": str(trainer.precision),
        "device": f"cpu x {torch.get_num_threads()}" if on_cpu else torch.cuda.get_device_name(tokens.device),
    }


def _replicas(trainer: Trainer) -> int:
    """Number of processes with different data: fewer than the world size with model parallelism."""
    return int(getattr(trainer.strategy, "distributed_sampler_kwargs", {}).get("num_replicas", trainer.world_size))
