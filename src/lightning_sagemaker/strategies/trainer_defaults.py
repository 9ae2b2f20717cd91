# SPDX-License-Identifier: Apache-2.0
"""Defaults of the Trainer's strategies that protect a job's progress."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.trainer import ensure_callback
from lightning_sagemaker.callbacks.heartbeat import Heartbeat
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.job.failure import write_failure
from lightning_sagemaker.preflight import preflight
from lightning_sagemaker.recovery.supervised import is_supervised
from lightning_sagemaker.strategies.default_callbacks import add_restart_callbacks, add_spot_interruption

if TYPE_CHECKING:
    from lightning.pytorch.strategies import ParallelStrategy as Host

    from lightning_sagemaker._types import LightningModule
else:
    Host = object


_log = logging.getLogger(__name__)


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
            add_restart_callbacks(model.trainer, in_memory=hasattr(self, "own_parts"))
        if self.stops_together:
            ensure_callback(model.trainer, Heartbeat())
            add_spot_interruption(model.trainer)
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
