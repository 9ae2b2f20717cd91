# SPDX-License-Identifier: Apache-2.0
"""Defaults of the Trainer's strategies that protect a job's progress."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.job.failure import write_failure
from lightning_sagemaker.preflight import preflight
from lightning_sagemaker.recovery.supervised import is_supervised

if TYPE_CHECKING:
    from lightning_sagemaker._types import LightningModule, Trainer


_log = logging.getLogger(__name__)


if TYPE_CHECKING:
    from lightning.pytorch.strategies import ParallelStrategy as Host
else:
    Host = object


class JobDefaults(Host):
    """Mixin after :class:`~lightning_sagemaker.strategies.job_aware.JobAware`: defaults for a training job.

    The first failure is written where SageMaker reads it. With ``stops_together``, a
    :class:`~lightning_sagemaker.SpotInterruption` and a :class:`~lightning_sagemaker.Heartbeat` are added to a Trainer
    that has none, and preflight checks are run.
    """

    job: SageMakerJob
    recovers: bool
    stops_together = False

    def connect(self, model: LightningModule) -> None:
        """Called when the Trainer begins a stage."""
        super().connect(model)
        if is_supervised() and not self.recovers:
            add_restart_callbacks(model.trainer, self)
        if self.stops_together:
            add_callbacks(model.trainer)
            run_preflight(self.job)

    def on_exception(self, exception: BaseException) -> None:
        """Called when a stage fails."""
        super().on_exception(exception)
        if self.job.in_container and isinstance(exception, Exception):
            module = self.lightning_module
            step = None if module is None else module.trainer.global_step
            write_failure(self.job.failure_file, exception, self.job.global_rank, step=step)


def run_preflight(job: SageMakerJob) -> None:
    """Run the preflight checks once on each host, as disks differ; not in processes that Lightning has started from one."""
    if not job.local_rank and os.environ.get("LOCAL_RANK", "0") == "0":
        for problem in preflight(job):
            _log.warning("%s: %s", job.current_host, problem)


def add_restart_callbacks(trainer: Trainer, strategy: object) -> None:
    """Add callbacks that continue after a restart of all ranks, from memory where the strategy shards parameters.

    Args:
        trainer: The Trainer; its existing callbacks are kept.
        strategy: The Trainer's strategy.

    """
    from lightning_sagemaker.callbacks.auto_resume import AutoResume
    from lightning_sagemaker.callbacks.memory_checkpoint import MemoryCheckpoint
    from lightning_sagemaker.recovery.together import RestartsTogether

    present = callbacks_of(trainer)
    if not any(isinstance(callback, AutoResume) for callback in present):
        present.append(AutoResume(search=False))
    if hasattr(strategy, "own_parts") and not any(isinstance(callback, MemoryCheckpoint) for callback in present):
        present.append(MemoryCheckpoint())
    if not any(isinstance(callback, RestartsTogether) for callback in present):
        present.insert(0, RestartsTogether())


def add_callbacks(trainer: Trainer, beats: bool = True) -> None:
    """Add callbacks that stop all ranks together, and detect a frozen rank.

    Args:
        trainer: The Trainer; its existing callbacks are kept.
        beats: Whether to add a heartbeat, if nothing else detects a frozen rank.

    """
    from lightning_sagemaker.callbacks.heartbeat import Heartbeat
    from lightning_sagemaker.callbacks.interruption import SpotInterruption

    if beats and not any(isinstance(callback, Heartbeat) for callback in callbacks_of(trainer)):
        callbacks_of(trainer).append(Heartbeat())
    if any(isinstance(callback, SpotInterruption) for callback in callbacks_of(trainer)):
        return
    if trainer.checkpoint_callbacks:
        callbacks_of(trainer).append(SpotInterruption())
    else:  # with enable_checkpointing=False only progress that an interruption would lose is saved
        callbacks_of(trainer).append(SpotInterruption(save_every=None))
