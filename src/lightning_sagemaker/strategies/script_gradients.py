# SPDX-License-Identifier: Apache-2.0
"""Replaces functions that a script calls on all gradients of a partitioned module, so that they cover all stages.

These are ``torch.nn.utils.clip_grad_norm_`` and Lightning's ``grad_norm``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

from lightning_sagemaker._lightning import grad_norm


class Gradients(Protocol):
    """Gradients of all stages. Collective over a model replica."""

    def clip_norm(self, parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip gradients by their global norm; returns the norm before clipping."""

    def grad_norms(self, parameters: Sequence[nn.Parameter], norm_type: float) -> Tensor:
        """The norm of each gradient; NaN for a parameter without one."""


class ScriptGradients:
    """Replaces the functions where a script may refer to them: in their packages, and in the files of its own classes.

    A script's list of parameters contains those that the process does not hold, too, so all processes call the functions.

    Args:
        gradients: Gradients of the module.
        module: The partitioned module.
        callbacks: Other objects of the script's classes.

    """

    def __init__(self, gradients: Gradients, module: nn.Module, callbacks: Iterable[object]) -> None:
        self._gradients = gradients
        self._own = {id(parameter) for parameter in module.parameters()}
        self._clip_by_torch, self._norm_by_lightning = clip_grad.clip_grad_norm_, grad_norm
        self._replaced: list[tuple[ModuleType, str, Callable[..., object]]] = []
        files = {base.__module__ for one in (module, *callbacks) for base in type(one).__mro__}
        self._replace(self._clip_by_torch, self._clip, files)
        self._replace(self._norm_by_lightning, self._norms, files)

    def _replace(self, function: Callable[..., object], by: Callable[..., object], files: Iterable[str]) -> None:
        home = function.__module__
        for place in (sys.modules[name] for name in {home, home.rpartition(".")[0], *files} if name in sys.modules):
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
        if not own:
            return self._clip_by_torch(given, max_norm, norm_type, error_if_nonfinite, foreach)
        norm = self._gradients.clip_norm(own, float(max_norm), float(norm_type))
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"The norm of the gradients is {norm.item()}, and error_if_nonfinite=True was given. HINT: lower the"
                " learning rate, or leave it out to continue."
            )
        return norm

    def _norms(self, module: nn.Module, norm_type: float | str, group_separator: str = "/") -> object:
        named = dict(module.named_parameters())
        own, kind = self._among_own(named.values()), float(norm_type)
        if len(own) < len(named) or kind <= 0:
            return self._norm_by_lightning(module, norm_type, group_separator)
        found = self._gradients.grad_norms(own, kind)
        called = "grad_{}_norm{}".format
        norms = {called(kind, group_separator + name): norm for name, norm in zip(named, found, strict=True)}
        present = {name: norm for name, norm in norms.items() if not norm.isnan()}
        total = torch.linalg.vector_norm(torch.stack([*present.values()]), kind) if present else None
        return present if total is None else {**present, called(kind, "_total"): total}
