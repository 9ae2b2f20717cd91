# SPDX-License-Identifier: Apache-2.0
"""The averages of a module's weights that Lightning's callbacks keep, in attributes without a public name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn
from torch.optim.swa_utils import AveragedModel

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker._lightning import pytorch_callbacks

if TYPE_CHECKING:
    from lightning_sagemaker._types import Callback, Trainer


_KEEPERS = ("StochasticWeightAveraging", "WeightAveraging")
_ATTRIBUTE = "_average_model"


def keep_averages(callbacks: Iterable[Callback]) -> list[Callback]:
    """The callbacks that average the weights.

    Raises:
        NameGone: If one keeps its average elsewhere in this version of Lightning.

    """
    kinds = tuple(kind for name in _KEEPERS if (kind := getattr(pytorch_callbacks, name, None)))
    found = [callback for callback in callbacks if isinstance(callback, kinds)]
    for callback in found:
        require(callback, _ATTRIBUTE)
    return found


def averages_of(callbacks: Iterable[Callback]) -> list[nn.Module]:
    """The current averages of callbacks: deep copies of the module, with averaged weights."""
    averages = [getattr(callback, _ATTRIBUTE) for callback in keep_averages(callbacks)]
    wrapped = [average.module if isinstance(average, AveragedModel) else average for average in averages]
    return [average for average in wrapped if average is not None]


def swap_averages(trainer: Trainer) -> None:
    """Swap the module's weights with those that callbacks keep while a validation uses averages; a second call undoes it."""
    for callback in callbacks_of(trainer):
        if getattr(callback, _ATTRIBUTE, None) is not None and hasattr(callback, "_swap_models"):
            callback._swap_models(trainer.lightning_module)
