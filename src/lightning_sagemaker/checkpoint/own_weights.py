# SPDX-License-Identifier: Apache-2.0
"""A snapshot of weights that can be restored; finds callbacks and optimizers that may swap weights."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lightning_sagemaker._compat.dtensor import local_of
from lightning_sagemaker._compat.pytree import tree_map_only
from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker._lightning import Callback
from lightning_sagemaker.checkpoint.stateful import Stateful

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict, Trainer

_PACKAGES = ("lightning", "pytorch_lightning", "lightning_sagemaker")
"""Packages whose hooks do not swap weights; Lightning's averages are swapped back by ``swap_averages``."""
_TENSORS, _ELEMENTS = 16, 256
"""Minimum elements of a module that are compared: averages differ from weights nearly everywhere."""


@dataclasses.dataclass
class _Kept:
    """A tensor's copy in CPU memory, and its original device."""

    tensor: Tensor
    device: torch.device


class OwnWeights:
    """A snapshot of weights: detects whether they were swapped, and restores them.

    Args:
        modules: Modules with the weights.
        others: Callbacks and optimizers that may have averages.
        keeps: Whether to copy all states to the CPU, if each rank has complete ones.

    Attributes:
        are_kept: Whether the states were copied.

    """

    def __init__(self, modules: Sequence[nn.Module], others: Sequence[Stateful] = (), keeps: bool = True) -> None:
        self._modules = modules
        now = self._now()
        trained = [name for name, parameter in now.items() if parameter.requires_grad]
        self._sample = {name: _part(now[name]).clone() for name in trained[:: max(1, len(trained) // _TENSORS)]}
        self.are_kept = keeps and all(map(_is_entire, now.values())) and not any(map(_shards, self._parts()))
        self._memory = {name: parameter.data for name, parameter in now.items()} if self.are_kept else {}
        self._states = [(one, kept_on_cpu(one.state_dict())) for one in (*modules, *others)] if self.are_kept else []
        replicas = (one for one in self._parts() if isinstance(one, DistributedDataParallel))
        self._broadcasts = [(one, one.require_forward_param_sync) for one in replicas]

    def are_exchanged(self) -> bool:
        """Whether the modules have other weights now.

        Some elements are compared, as neither version counters (``.data`` has its own) nor addresses (values may be copied)
        would show it.
        """
        now = self._now()
        return not all(_are_equal(_part(now[name]), kept) for name, kept in self._sample.items() if name in now)

    def put_back(self) -> None:
        """Restore the weights and states in their original memory."""
        for name, parameter in self._now().items():
            if name in self._memory:
                parameter.data = self._memory[name]
        self.load()

    def load(self) -> None:
        """Load the weights and states into the current parameters and objects."""
        for owner, state in self._states:
            if isinstance(owner, nn.Module):
                owner.load_state_dict(given_back(state), strict=False)  # hooks may have added to it
            else:
                owner.load_state_dict(given_back(state))
        for replicas, broadcasts in self._broadcasts:  # DDP's flags for buffers, which are each rank's own again
            replicas.require_forward_param_sync = broadcasts

    @property
    def callback_states(self) -> dict[str, StateDict]:
        """States of the callbacks, by their keys."""
        return {one.state_key: given_back(state) for one, state in self._states if isinstance(one, Callback)}

    def _parts(self) -> Iterator[nn.Module]:
        return itertools.chain.from_iterable(module.modules() for module in self._modules)

    def _now(self) -> dict[str, nn.Parameter]:
        named = (module.named_parameters(f"{number}") for number, module in enumerate(self._modules))
        return dict(itertools.chain.from_iterable(named))


def hooked(trainer: Trainer, hooks: Sequence[str]) -> list[Stateful] | None:
    """The script's callbacks that have one of ``hooks``, and optimizers that may have averages.

    Returns:
        The callbacks and optimizers; None if there are none and the module has none of the hooks either.

    """
    callbacks: list[Stateful] = [one for one in callbacks_of(trainer) if is_hooked(one, hooks)]
    if not callbacks and not is_hooked(trainer.lightning_module, hooks):
        return None
    return [*callbacks, *with_averages(trainer.optimizers)]


def with_averages(objects: Iterable[object]) -> list[Stateful]:
    """Optimizers that may keep averages: those that are not torch's. Fabric's wrapper has the class that it wraps."""
    optimizers = [getattr(one, "optimizer", one) for one in objects]
    return [one for one in optimizers if isinstance(one, Optimizer) and _package(type(one)) != "torch"]


def is_hooked(one: object, hooks: Sequence[str]) -> bool:
    """Whether a module or a callback has one of ``hooks`` from the script, or from a library that it uses."""
    return any(_package(getattr(one, hook, is_hooked)) not in _PACKAGES for hook in hooks)


def _package(one: object) -> str:
    return (getattr(one, "__module__", None) or "").partition(".")[0]


def _is_entire(parameter: Tensor) -> bool:
    return parameter.numel() > 0 and not (parameter.is_meta or isinstance(parameter, DTensor))


def _shards(module: nn.Module) -> bool:
    return isinstance(module, FullyShardedDataParallel)


def kept_on_cpu(state: Mapping[str, object]) -> StateDict:
    """A copy of a state on the CPU, for :func:`given_back`."""
    return cast("StateDict", tree_map_only(Tensor, _kept, dict(state)))


def _kept(tensor: Tensor) -> _Kept:
    return _Kept(tensor.detach().to("cpu", copy=True), tensor.device)


def given_back(state: StateDict) -> StateDict:
    """A copy of the result of :func:`kept_on_cpu`, on the original devices."""
    return cast("StateDict", tree_map_only(_Kept, lambda kept: kept.tensor.to(kept.device, copy=True), state))


def _part(parameter: Tensor) -> Tensor:
    """Some elements, from the middle, as the first rows of a vocabulary may be padding."""
    local = local_of(parameter)
    middle = local.numel() // 2
    return local.detach().flatten()[middle : middle + _ELEMENTS]


def _are_equal(part: Tensor, kept: Tensor) -> bool:
    """Whether the bytes are equal; also true if a conversion of the module, such as to bf16, makes them incomparable."""
    if part.shape != kept.shape:
        return True
    return torch.equal(part.view(torch.uint8), kept.to(part.device, part.dtype).view(torch.uint8))
