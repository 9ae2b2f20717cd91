# SPDX-License-Identifier: Apache-2.0
"""Replaces ``torch.nn.utils.clip_grad_norm_``, so that it clips a partitioned module by the norm of all stages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Protocol

from torch import Tensor, nn
from torch.nn.utils import clip_grad


class Gradients(Protocol):
    """Gradients of all stages. Collective over a model replica."""

    def clip_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip gradients by their global norm; returns the norm before clipping."""


class ScriptClipping:
    """Replaces the function in every module that has it: a script may have imported it anywhere, and so may libraries.

    A script's list of parameters contains those that the process does not hold, too, so all processes call the function.
    One that is called with no parameters at all, as those of a stage without any, takes part as well.

    Args:
        gradients: Gradients of the module.
        module: The partitioned module.

    """

    def __init__(self, gradients: Gradients, module: nn.Module) -> None:
        self._gradients = gradients
        self._own = {id(parameter) for parameter in module.parameters()}
        self._clip_by_torch = clip_grad.clip_grad_norm_
        self._replaced: list[tuple[ModuleType, str, Callable[..., object]]] = []
        self._replace(self._clip_by_torch, self._clip)

    def _replace(self, function: Callable[..., object], by: Callable[..., object]) -> None:
        for place in [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]:
            for name in [name for name, value in vars(place).items() if value is function]:
                self._replaced.append((place, name, function))
                setattr(place, name, by)

    def restore(self) -> None:
        """Restore the functions."""
        for place, name, function in self._replaced:
            setattr(place, name, function)
        self._replaced.clear()

    def _among_own(self, parameters: Iterable[Tensor]) -> list[nn.Parameter]:
        return [one for one in parameters if isinstance(one, nn.Parameter) and id(one) in self._own]

    def _clip(
        self,
        parameters: Tensor | Iterable[Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        own = self._among_own(given)
        if given and not own:
            return self._clip_by_torch(given, max_norm, norm_type, error_if_nonfinite, foreach)
        norm = self._gradients.clip_norm(own, float(max_norm), float(norm_type))
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"The norm of the gradients is {norm.item()}, and error_if_nonfinite=True was given. HINT: lower the"
                " learning rate, or leave it out to continue."
            )
        return norm
