# SPDX-License-Identifier: Apache-2.0
"""Scripts that cannot recover in the job: under ``supervise`` all their ranks are restarted when one is lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.coordinator_client import CoordinatorClient, RecoveryError

_REFUSED = {
    "LearningRateFinder": "a replacement cannot run its trials while the others train",
    "BatchSizeFinder": "a replacement cannot run its trials while the others train",
    "WeightAveraging": "it keeps its own weights, which a replacement would not have",
    "StochasticWeightAveraging": "it keeps its own weights, which a replacement would not have",
    "ModelPruning": "a replacement would not have its masks",
    "BaseFinetuning": "a replacement's parameter groups would differ from those of ranks that have unfrozen some",
}
"""Unsupported Lightning callbacks: name -> reason."""


class CannotRecover(RecoveryError):
    """What is trained cannot recover in the job.

    Attributes:
        why: The reason.

    """

    def __init__(self, why: str) -> None:
        super().__init__(
            f"This script cannot recover in the job (recovery='in_job', the default under supervise): {why}."
            " HINT: set recovery='restart': all ranks are then restarted when one is lost."
        )
        self.why = why


@contextmanager
def restarting_instead(client: CoordinatorClient, is_asked: bool) -> Iterator[None]:
    """If the code within cannot recover in the job, restart all ranks without recovery in the job. Collective.

    Args:
        client: This rank's connection to the coordinator.
        is_asked: Whether the script has set ``recovery="in_job"``; then raise instead.

    Raises:
        CannotRecover: If it has, or if an earlier fit has completed, which a restart would repeat.

    """
    try:
        yield
    except CannotRecover as error:
        if is_asked or client.has_finished:
            raise
        rank_zero_info(
            f"When a rank is lost, all ranks are restarted: {error.why}. They are started again now, as ranks that do not"
            " recover in the job."
        )
        client.leave_for_restarts()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(wire.CANNOT)


def check(trainer: Any) -> None:
    """Raise for features that cannot be repeated after a loss, or reproduced by a replacement.

    Args:
        trainer: The Trainer, with its module.

    Raises:
        CannotRecover: If the script uses one.

    """
    if not trainer.lightning_module.automatic_optimization:
        raise CannotRecover(
            "the module uses manual optimization (automatic_optimization=False): it is unknown which of its steps count"
        )
    for callback in trainer.callbacks:
        for kind in type(callback).__mro__:
            if why := _REFUSED.get(kind.__name__):
                raise CannotRecover(f"{type(callback).__name__} was given: {why}")
