# SPDX-License-Identifier: Apache-2.0
"""``torch.nn.utils.clip_grad_norm_`` in a script whose module is partitioned: the norm is that of the complete model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

ClipNorm = Callable[[Sequence[nn.Parameter], float, float], Tensor]
"""Clips gradients of parameters by their global norm of a kind. Collective over a model replica."""


class ScriptClipping:
    """Replaces torch's function where a script may have it: in torch, and in the files of its own classes.

    Parameters that a process does not hold are in a script's list like all others, so all processes take part.

    Args:
        clip_norm: Takes its place for parameters of the module.
        module: That is partitioned.
        callbacks: Other objects of the script's classes.

    """

    def __init__(self, clip_norm: ClipNorm, module: nn.Module, callbacks: Iterable[object]) -> None:
        self._original = clip_grad.clip_grad_norm_
        self._clip_norm = clip_norm
        self._own = {id(parameter) for parameter in module.parameters()}
        files = {base.__module__ for one in (module, *callbacks) for base in type(one).__mro__}
        found = [torch.nn.utils, clip_grad, *(sys.modules[name] for name in files if name in sys.modules)]
        self._replaced = [
            (place, name) for place in found for name, value in [*vars(place).items()] if value is self._original
        ]
        self._set(self._clip)

    def give_back(self) -> None:
        """Leave torch's function as it was found."""
        self._set(self._original)
        self._replaced.clear()

    def _set(self, function: Callable[..., Tensor]) -> None:
        places: list[tuple[ModuleType, str]] = self._replaced
        for place, name in places:
            setattr(place, name, function)

    def _clip(
        self,
        parameters: Tensor | Iterable[Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        own = [one for one in given if isinstance(one, nn.Parameter) and id(one) in self._own]
        if not own:
            return self._original(given, max_norm, norm_type, error_if_nonfinite, foreach)
        norm = self._clip_norm(own, float(max_norm), float(norm_type))
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(f"The norm of the gradients is {norm.item()}, and error_if_nonfinite=True was given.")
        return norm
