# SPDX-License-Identifier: Apache-2.0
"""Scripts that cannot recover in the job, refused at the start with the reason."""

from __future__ import annotations

from typing import Any

from lightning_sagemaker.recovery.member import RecoveryError

_REFUSED = {
    "LearningRateFinder": "a replacement cannot make its trials, as the others train",
    "BatchSizeFinder": "a replacement cannot make its trials, as the others train",
    "WeightAveraging": "it keeps weights of its own, which a replacement would not have",
    "StochasticWeightAveraging": "it keeps weights of its own, which a replacement would not have",
    "BaseFinetuning": "a replacement has other groups of parameters than those who have thawed some",
}
"""Of Lightning's callbacks: name -> why not."""


def check(trainer: Any) -> None:
    """Refuse what cannot be done again after a loss, or followed by a replacement.

    Args:
        trainer: The Trainer, with its module.

    Raises:
        RecoveryError: If the script does it.

    """
    if not trainer.lightning_module.automatic_optimization:
        raise RecoveryError(
            "recovery='in_job' was set, and the module optimizes by hand (automatic_optimization=False): which of its steps"
            " count cannot be known. HINT: let Lightning optimize, or leave recovery out."
        )
    for callback in trainer.callbacks:
        for kind in type(callback).__mro__:
            if why := _REFUSED.get(kind.__name__):
                raise RecoveryError(
                    f"recovery='in_job' was set, and {type(callback).__name__} was given: {why}."
                    " HINT: recovery='restart', or leave the callback out."
                )
