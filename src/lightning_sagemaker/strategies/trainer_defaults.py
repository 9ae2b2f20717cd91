# SPDX-License-Identifier: Apache-2.0
"""What the Trainer's strategies do by default so that nothing is lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.job.failure import write_failure
from lightning_sagemaker.preflight import preflight

if TYPE_CHECKING:
    from lightning_sagemaker._types import LightningModule, Trainer


_log = logging.getLogger(__name__)


if TYPE_CHECKING:
    from lightning.pytorch.strategies import ParallelStrategy as Host
else:
    Host = object


class JobDefaults(Host):
    """Mixin after :class:`~lightning_sagemaker.strategies.job_aware.JobAware`: what a training job has by default.

    The first failure is written where SageMaker looks for it. Where ``stops_together``, a
    :class:`~lightning_sagemaker.SpotInterruption` and a :class:`~lightning_sagemaker.Heartbeat` are added to a Trainer that
    has none, and what would end the job later is looked at.
    """

    job: SageMakerJob
    stops_together = False

    def connect(self, model: LightningModule) -> None:
        """Called when the Trainer begins a stage."""
        super().connect(model)
        if self.stops_together:
            add_callbacks(model.trainer)
            _look_before(self.job)

    def on_exception(self, exception: BaseException) -> None:
        """Called when a stage fails."""
        super().on_exception(exception)
        if self.job.in_container and isinstance(exception, Exception):
            module = self.lightning_module
            step = None if module is None else module.trainer.global_step
            write_failure(self.job.failure_file, exception, self.job.global_rank, step=step)


def _look_before(job: SageMakerJob) -> None:
    """Once on each host, which have their own disks."""
    if not job.local_rank:
        for problem in preflight(job):
            _log.warning("%s: %s", job.current_host, problem)


def add_callbacks(trainer: Trainer, beats: bool = True) -> None:
    """Have a Trainer stop together when one rank is asked to, and miss one that is frozen.

    Args:
        trainer: What it has already is left.
        beats: Whether nothing else notices a rank that is frozen.

    """
    from lightning_sagemaker.callbacks.heartbeat import Heartbeat
    from lightning_sagemaker.callbacks.interruption import SpotInterruption

    if beats and not any(isinstance(callback, Heartbeat) for callback in callbacks_of(trainer)):
        callbacks_of(trainer).append(Heartbeat())
    if any(isinstance(callback, SpotInterruption) for callback in callbacks_of(trainer)):
        return
    if trainer.checkpoint_callbacks:
        callbacks_of(trainer).append(SpotInterruption())
    else:  # with enable_checkpointing=False only what an interruption would lose is written
        callbacks_of(trainer).append(SpotInterruption(save_every=None))
