# SPDX-License-Identifier: Apache-2.0
"""Initial values of modules that were built on the meta device, by their own initializers."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError

Initializer = Callable[[nn.Module], object]


def initial_values(root: nn.Module, wanted: Callable[[Tensor], bool]) -> dict[int, Callable[[], Tensor]]:
    """Functions that compute the initial values of parameters and buffers, by the tensors' ids.

    Each module is initialized separately, with random numbers that depend on the seed and on its name, so that values do
    not depend on which process computes them.

    Args:
        root: Module with parameters or buffers on the meta device.
        wanted: Whether the initial values of a tensor are needed.

    Raises:
        ParallelConfigError: If a module has no ``reset_parameters`` and is not in a model with ``_init_weights``, as
            those of transformers have.

    """
    found: dict[int, Callable[[], Tensor]] = {}
    lacking: list[str] = []
    seed = torch.initial_seed()
    for name, module, initializer in _with_initializers(root):
        own = {key: tensor for key, tensor in _own_tensors(module).items() if wanted(tensor)}
        if own and initializer is None:
            lacking.append(f"{name or type(root).__name__} ({type(module).__name__})")
        elif own and initializer is not None:
            fresh = _Fresh(name, module, initializer, (seed + zlib.crc32(name.encode())) % 2**63)
            found.update({id(tensor): functools.partial(fresh.take, key) for key, tensor in own.items()})
    if lacking:
        raise ParallelConfigError(
            f"{', '.join(lacking[:4])}{' ...' if len(lacking) > 4 else ''} was built on the meta device and has no"
            " reset_parameters() that would give it values. HINT: build the model in configure_model() with"
            " delayed_parameter_initialization, which needs none, or define reset_parameters()."
        )
    return found


class _Fresh:
    """The initial values of one module, computed when the first is taken.

    Args:
        name: Name of the module, for errors.
        module: The module; its parameters and buffers are not changed.
        initialize: Its initializer.
        seed: Seed of its random numbers.

    """

    def __init__(self, name: str, module: nn.Module, initialize: Initializer, seed: int) -> None:
        self._name, self._module, self._initialize, self._seed = name, module, initialize, seed
        self._values: dict[str, Tensor] = {}

    def take(self, key: str) -> Tensor:
        """The values of a parameter or buffer of the module.

        Raises:
            ParallelConfigError: If the initializer does not set them.

        """
        if key not in self._values:
            self._values = self._computed()
        value = self._values.pop(key)
        if _is_empty(value) or (value.dtype is torch.bool and not value.equal(self._computed(truth=True)[key])):
            raise ParallelConfigError(
                f"{self._name}.{key} was built on the meta device, and the initializer of {type(self._module).__name__}"
                " does not set it. HINT: build the model in configure_model() with delayed_parameter_initialization, or"
                " set it in reset_parameters()."
            )
        return value

    @torch.no_grad()
    def _computed(self, truth: bool = False) -> dict[str, Tensor]:
        module = self._module
        parameters, buffers = dict(module._parameters), dict(module._buffers)
        try:
            for key, tensor in _own_tensors(module).items():
                if tensor.is_meta:
                    _put(module, key, _nothing_like(tensor, truth))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._seed)
                self._initialize(module)
            return {key: tensor.detach() for key, tensor in _own_tensors(module).items()}
        finally:
            module._parameters.update(parameters)
            module._buffers.update(buffers)


def _with_initializers(root: nn.Module) -> list[tuple[str, nn.Module, Initializer | None]]:
    """Each module with its initializer; for modules of transformers, the innermost model's ``_init_weights``."""
    found: list[tuple[str, nn.Module, Initializer | None]] = []
    of_model: dict[str, Initializer] = {}
    for name, module in root.named_modules():
        parent = name.rpartition(".")[0]
        around = getattr(module, "_init_weights", of_model.get(parent) if name else None)
        if around is not None:
            of_model[name] = around
        own: Initializer | None = _reset if callable(getattr(module, "reset_parameters", None)) else None
        found.append((name, module, around or own))
    return found


def _reset(module: nn.Module) -> None:
    module.reset_parameters()  # type: ignore[operator]


def _own_tensors(module: nn.Module) -> Mapping[str, Tensor]:
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


def _put(module: nn.Module, key: str, value: Tensor) -> None:
    if module._parameters.get(key) is None:
        module._buffers[key] = value
    else:
        module._parameters[key] = nn.Parameter(value, value.is_floating_point())


def _nothing_like(tensor: Tensor, truth: bool) -> Tensor:
    """Sentinel values, to detect whether a tensor was set; for booleans both are tried, given by ``truth``."""
    empty = torch.empty_like(tensor, device="cpu", requires_grad=False)
    return empty.fill_(truth if tensor.dtype is torch.bool else _mark(tensor))


def _mark(tensor: Tensor) -> float | int:
    if tensor.is_floating_point() or tensor.is_complex():
        return float("nan")
    return torch.iinfo(tensor.dtype).min


def _is_empty(tensor: Tensor) -> bool:
    if tensor.dtype is torch.bool or not tensor.numel():
        return False
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    return bool((tensor == _mark(tensor)).any())
