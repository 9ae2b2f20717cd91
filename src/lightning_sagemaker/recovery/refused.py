# SPDX-License-Identifier: Apache-2.0
"""Scripts that cannot recover in the job, refused at the start with the reason."""

from __future__ import annotations

from typing import Any

from lightning_sagemaker.recovery.member import RecoveryError

_REFUSED = {
    "LearningRateFinder": "a replacement cannot run its trials while the others train",
    "BatchSizeFinder": "a replacement cannot run its trials while the others train",
    "WeightAveraging": "it keeps its own weights, which a replacement would not have",
    "StochasticWeightAveraging": "it keeps its own weights, which a replacement would not have",
    "BaseFinetuning": "a replacement's parameter groups would differ from those of ranks that have unfrozen some",
}
"""Unsupported Lightning callbacks: name -> reason."""


def check(trainer: Any) -> None:
    """Refuse what cannot be repeated after a loss, or reproduced by a replacement.

    Args:
        trainer: The Trainer, with its module.

    Raises:
        RecoveryError: If the script uses it.

    """
    if not trainer.lightning_module.automatic_optimization:
        raise RecoveryError(
            "recovery='in_job' was set, and the module uses manual optimization (automatic_optimization=False): it is "
            "unknown which"
            " of its steps count. HINT: use automatic optimization, or leave recovery out."
        )
    for callback in trainer.callbacks:
        for kind in type(callback).__mro__:
            if why := _REFUSED.get(kind.__name__):
                raise RecoveryError(
                    f"recovery='in_job' was set, and {type(callback).__name__} was given: {why}."
                    " HINT: recovery='restart', or leave the callback out."
                )
