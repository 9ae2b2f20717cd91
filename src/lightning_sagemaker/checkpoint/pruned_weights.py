# SPDX-License-Identifier: Apache-2.0
"""Masks of ``torch.nn.utils.prune``, by Lightning's ``ModelPruning`` or a script's own hooks, across a restart.

A pruned parameter is a tensor that is computed from another parameter and a mask before each forward pass. ``ModelPruning``
saves the tensor only, so a run that resumed would train the pruned weights again; without it, the names in a checkpoint are
not those of the module that loads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from lightning_sagemaker._compat.pruning import share_copies, shared_copies
from lightning_sagemaker._compat.trainer import loaded_checkpoint
from lightning_sagemaker.checkpoint.find import STATE
from lightning_sagemaker.checkpoint.module_walk import named_modules

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import Trainer

ENTRY = "pruned"
"""Key in a checkpoint's entry."""
_TRAINED, _MASK = "_orig", "_mask"
"""What torch appends to a parameter's name."""


class _Parameter(NamedTuple):
    """A pruned parameter: the module that has it, its name in the module, and its full name."""

    module: nn.Module
    name: str
    path: str


class Pruned(TypedDict):
    """The result of :func:`pruned_weights`.

    Attributes:
        weights: The trained values, the mask and the current product of each pruned parameter, by name. The product is that
            of the last forward pass, by which the next pruning ranks the weights.
        shared: As :func:`~.pruning.shared_copies`.

    """

    weights: dict[str, list[Tensor]]
    shared: list[int]


def pruned_weights(trainer: Trainer) -> Pruned:
    """The pruned parameters of a Trainer's module."""
    return {
        "weights": {
            one.path: [_copied(getattr(one.module, one.name + end)) for end in (_TRAINED, _MASK, "")]
            for one in _pruned_in(trainer.lightning_module)
        },
        "shared": shared_copies(trainer),
    }


def prune_as(trainer: Trainer, pruned: Pruned) -> None:
    """Prune the parameters of a Trainer's module as those of another one were, from its :func:`pruned_weights`."""
    for path, (trained, mask, product) in pruned["weights"].items():
        where, _, name = path.rpartition(".")
        child = trainer.lightning_module.get_submodule(where)
        if (parameter := getattr(child, name + _TRAINED, None)) is None:
            parameter = getattr(child, name)
            prune.custom_from_mask(child, name, mask.to(parameter.device))  # type: ignore[no-untyped-call]
        with torch.no_grad():
            parameter.copy_(trained)
            getattr(child, name + _MASK).copy_(mask)
        setattr(child, name, product.to(parameter.device))
    share_copies(trainer, pruned["shared"])


class PrunedWeights:
    """Restores what :func:`pruned_weights` has put into the checkpoint that a fit resumes from.

    Args:
        trainer: Trainer of the fit.
        events: Events of the fit.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents) -> None:
        self._trainer = trainer
        self._loaded: Pruned | None = None
        events.before_checkpoint_load.append(self._load)

    def _load(self) -> None:
        """Before the module loads the checkpoint, name the weights in it as they are named before they are pruned."""
        checkpoint = loaded_checkpoint(self._trainer)
        self._loaded = checkpoint.get(STATE, {}).get(ENTRY)
        pruned = set() if self._loaded is None else self._loaded["weights"].keys()
        weights = checkpoint.get("state_dict", {})
        there = {one.path for one in _pruned_in(self._trainer.lightning_module)}
        for path in pruned - there:
            if path + _TRAINED in weights and path + _MASK in weights:
                weights[path] = weights.pop(path + _TRAINED) * weights.pop(path + _MASK)

    def restore(self) -> None:
        """Prune the parameters as they were."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            prune_as(self._trainer, loaded)


def _pruned_in(module: nn.Module) -> Iterator[_Parameter]:
    for path, child in named_modules(module):
        for trained, _ in child.named_parameters(recurse=False):
            name = trained.removesuffix(_TRAINED)
            if name != trained and isinstance(getattr(child, name + _MASK, None), Tensor) and prune.is_pruned(child):
                yield _Parameter(child, name, f"{path}.{name}".lstrip("."))


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
