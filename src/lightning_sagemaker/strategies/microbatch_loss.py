# SPDX-License-Identifier: Apache-2.0
"""The loss of a microbatch, for a pipeline's backward pass."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lightning_sagemaker._lightning import MisconfigurationException


def microbatch_loss(result: object, accumulated: int, scaler: torch.amp.GradScaler | None) -> Tensor:
    """The loss, scaled as the Trainer scales the loss of a batch.

    Args:
        result: Result of ``training_step`` for the microbatch: the loss, or a mapping with it.
        accumulated: Number of batches of an optimizer step.
        scaler: Gradient scaler of the precision; None without one.

    Raises:
        MisconfigurationException: If there is no loss.

    """
    loss = result["loss"] if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor):
        raise MisconfigurationException(
            f"training_step returned {type(loss).__name__} in a pipeline. HINT: return the loss, or a dictionary with it."
        )
    loss = loss / accumulated
    return loss if scaler is None else scaler.scale(loss)
