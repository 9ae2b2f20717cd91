# SPDX-License-Identifier: Apache-2.0
"""The initial weights that Lightning's ``ModelPruning`` goes back to (the lottery ticket hypothesis, its default).

It puts the memory of its copies into the module, so from then on training changes both, and going back has no effect. A
resumed run would have copies of their own, and go back to the initial weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker._lightning import pytorch_callbacks

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer


def shared_copies(trainer: Trainer) -> list[int]:
    """Numbers of the copies that share their memory with the module's parameters."""
    return [number for number, copy, own in _pairs(trainer) if copy.data_ptr() == own.data_ptr()]


def share_copies(trainer: Trainer, numbers: list[int]) -> None:
    """Let the copies of :func:`shared_copies` share the memory of the module's parameters."""
    for number, copy, own in _pairs(trainer):
        if number in numbers:
            copy.data = own.data


def _pairs(trainer: Trainer) -> Iterator[tuple[int, nn.Parameter, nn.Parameter]]:
    """Numbered pairs of a copy and the module's parameter."""
    number = 0
    for callback in callbacks_of(trainer):
        if not isinstance(callback, pytorch_callbacks.ModelPruning):
            continue
        require(callback, "_original_layers", "_parameters_to_prune")
        for layer in (callback._original_layers or {}).values():
            for place, name in layer["names"]:
                module = callback._parameters_to_prune[place][0]
                number += 1
                yield number, getattr(layer["data"], name), getattr(module, f"{name}_orig", getattr(module, name))
