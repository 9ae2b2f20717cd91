# SPDX-License-Identifier: Apache-2.0
"""Weights that a script's hooks exchange for a validation, such as averages: a checkpoint within it has the module's own.

Lightning saves after a validation, when these hooks have put the weights back. A stop, or the loss of a rank, does not wait
until then.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lightning_sagemaker._compat.pytree import tree_map_only
from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker._lightning import Callback, rank_zero_info, rank_zero_warn

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import StateDict, Trainer

_HOOKS = ("on_validation_model_eval", "on_validation_start", "on_validation_epoch_start")
_START_HOOKS = (
    "on_fit_start",
    "on_sanity_check_start",
    "on_sanity_check_end",
    "on_train_start",
    "on_train_epoch_start",
)
_PACKAGES = ("lightning", "pytorch_lightning", "lightning_sagemaker")
"""Whose hooks exchange nothing; Lightning's averages are exchanged back by ``swap_averages``."""
_TENSORS, _ELEMENTS = 16, 256
"""How much of a module is compared: averages differ from weights nearly everywhere."""


class Stateful(Protocol):
    """What has a state: a module, a callback, an optimizer."""

    def state_dict(self) -> Mapping[str, object]:
        """Its state."""

    def load_state_dict(self, state_dict: StateDict, /) -> object:
        """Take over a state."""


@dataclasses.dataclass
class _Kept:
    """A tensor in the CPU's memory, and where it came from."""

    tensor: Tensor
    device: torch.device


class OwnWeights:
    """Weights at a moment: whether others take their place, and how they come back.

    Args:
        modules: Whose weights they are.
        others: Callbacks and optimizers that may have averages.
        keeps: Whether to copy all states to the CPU, if each rank has all of them.

    Attributes:
        are_kept: Whether they have been copied.

    """

    def __init__(self, modules: Sequence[nn.Module], others: Sequence[Stateful] = (), keeps: bool = True) -> None:
        self._modules = modules
        now = self._now()
        trained = [name for name, parameter in now.items() if parameter.requires_grad]
        self._sample = {name: _part(now[name]).clone() for name in trained[:: max(1, len(trained) // _TENSORS)]}
        self.are_kept = keeps and all(map(_is_entire, now.values())) and not any(map(_shards, self._parts()))
        self._memory = {name: parameter.data for name, parameter in now.items()} if self.are_kept else {}
        self._states = [(one, _on_cpu(one.state_dict())) for one in (*modules, *others)] if self.are_kept else []
        replicas = (one for one in self._parts() if isinstance(one, DistributedDataParallel))
        self._broadcasts = [(one, one.require_forward_param_sync) for one in replicas]

    def are_exchanged(self) -> bool:
        """Whether the modules have other weights now.

        Some elements are compared: neither version counters (``.data`` has its own) nor addresses (values may be copied)
        would tell.
        """
        now = self._now()
        return not all(_are_equal(_part(now[name]), kept) for name, kept in self._sample.items() if name in now)

    def put_back(self) -> None:
        """Restore the weights, and the states, in the memory that they had."""
        for name, parameter in self._now().items():
            if name in self._memory:
                parameter.data = self._memory[name]
        self.load()

    def load(self) -> None:
        """Restore the weights, and the states, in the memory that they have now."""
        for owner, state in self._states:
            if isinstance(owner, nn.Module):
                owner.load_state_dict(_on_devices(state), strict=False)  # hooks may have added to it
            else:
                owner.load_state_dict(_on_devices(state))
        for replicas, broadcasts in self._broadcasts:  # of buffers, which are each rank's own again
            replicas.require_forward_param_sync = broadcasts

    @property
    def callback_states(self) -> dict[str, StateDict]:
        """States of the callbacks, by their keys."""
        return {one.state_key: _on_devices(state) for one, state in self._states if isinstance(one, Callback)}

    def _parts(self) -> Iterator[nn.Module]:
        return itertools.chain.from_iterable(module.modules() for module in self._modules)

    def _now(self) -> dict[str, nn.Parameter]:
        named = (module.named_parameters(f"{number}") for number, module in enumerate(self._modules))
        return dict(itertools.chain.from_iterable(named))


class ExchangedWeights:
    """The module's own weights during a fit's validations, if hooks of the script may exchange them.

    They are copied before the first validation, and before later ones if the one before exchanged them.

    Args:
        trainer: Whose fit it is.
        events: Events of the fit.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents) -> None:
        self._trainer = trainer
        self._own: OwnWeights | None = None
        self._keeps, self._has_looked, self._has_warned = True, False, False
        events.validation_begins.append(self._begin)
        events.validation_steps.append(self._look)
        events.validation_ends.append(self._end)

    def _begin(self) -> None:
        if (others := _others(self._trainer)) is not None:
            self._own, self._has_looked = OwnWeights([self._trainer.lightning_module], others, self._keeps), False

    def _look(self) -> None:
        """Before each batch: what has not been exchanged need not be kept."""
        if self._own is None or self._has_looked:
            return
        self._has_looked, self._keeps = True, self._own.are_exchanged()
        if not self._keeps:
            self._own = OwnWeights([self._trainer.lightning_module], keeps=False)

    def _end(self) -> None:
        self._own = None

    def put_back(self) -> bool:
        """Give the module its own weights, for a process that leaves the validation.

        Returns:
            Whether it has its own weights now.

        """
        own, self._own = self._own, None
        if own is None or not own.are_exchanged():
            return True
        if own.are_kept:
            own.put_back()
        return own.are_kept

    def check_saved(self) -> None:
        """Warn, once, if what is being saved is not the module's own weights."""
        if self._own is not None and not self._has_warned and self._own.are_exchanged():
            self._has_warned = True
            rank_zero_warn(
                "A checkpoint was saved before a hook put the weights back that it had exchanged for the validation: a run"
                " resumed from it trains on those that were in their place, unless a later hook puts them back. HINT:"
                " Lightning saves before the module's own on_validation_end; use on_validation_epoch_end, or a callback."
            )

    @property
    def callback_states(self) -> dict[str, StateDict]:
        """States before the validation of callbacks whose hooks may exchange weights, by their keys."""
        return {} if self._own is None else self._own.callback_states


class LoadedWeights:
    """A checkpoint's weights, which hooks of the start may overwrite: ones that initialize a module, or begin an average.

    A run that was not interrupted does not call them there.

    Args:
        trainer: Whose fit it is.
        events: Events of the fit.
        is_resumed: Whether what has been loaded is a checkpoint that the fit goes on from.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents, is_resumed: Callable[[], bool]) -> None:
        self._trainer, self._is_resumed = trainer, is_resumed
        self._own: OwnWeights | None = None
        events.checkpoint_is_loaded.append(self._take)

    def _take(self) -> None:
        if self._is_resumed() and _others(self._trainer, _START_HOOKS) is not None:
            self._own = OwnWeights([self._trainer.lightning_module])

    def restore(self) -> None:
        """After these hooks."""
        own, self._own = self._own, None
        if own is None or not own.are_exchanged():
            return
        own.load()
        rank_zero_info(
            "A hook of the start, such as on_train_start, has changed the module's weights: they are the checkpoint's again."
        )


class LoopWeights:
    """The weights of a custom loop at the end of an epoch's batches, which its script may exchange for an evaluation.

    They are copied if an earlier evaluation exchanged them.
    """

    def __init__(self) -> None:
        self._own: OwnWeights | None = None
        self._keeps = False

    def take(self, state: Mapping[str, object]) -> None:
        """The modules and optimizers in ``state`` have their own weights now."""
        modules = [value for value in state.values() if isinstance(value, nn.Module)]
        self._own = OwnWeights(modules, _with_averages(state.values()), self._keeps)

    def can_go_back(self) -> bool:
        """Whether the weights are there: if not, they will be next time, unless they are sharded."""
        if self._own is None:
            return True
        self._keeps = self._own.are_exchanged()
        return not self._keeps or self._own.are_kept

    def put_back(self) -> None:
        """Restore the weights, if they have been exchanged."""
        if self._own is not None and self._own.are_exchanged():
            self._own.put_back()

    def forget(self) -> None:
        """The evaluations are over."""
        self._own = None


def _others(trainer: Trainer, hooks: Sequence[str] = _HOOKS) -> list[Stateful] | None:
    """Callbacks that have such hooks, and optimizers, of which some have averages; None if there are no hooks at all."""
    callbacks: list[Stateful] = [one for one in callbacks_of(trainer) if _is_hooked(one, hooks)]
    if not callbacks and not _is_hooked(trainer.lightning_module, hooks):
        return None
    return [*callbacks, *_with_averages(trainer.optimizers)]


def _with_averages(objects: Iterable[object]) -> list[Stateful]:
    """Optimizers that may have averages: not torch's. Fabric's wrapper is of the class that it wraps."""
    optimizers = [getattr(one, "optimizer", one) for one in objects]
    return [one for one in optimizers if isinstance(one, Optimizer) and _package(type(one)) != "torch"]


def _is_entire(parameter: Tensor) -> bool:
    return parameter.numel() > 0 and not (parameter.is_meta or isinstance(parameter, DTensor))


def _shards(module: nn.Module) -> bool:
    return isinstance(module, FullyShardedDataParallel)


def _is_hooked(one: object, hooks: Sequence[str]) -> bool:
    return any(_package(getattr(one, hook, _is_hooked)) not in _PACKAGES for hook in hooks)


def _package(one: object) -> str:
    return (getattr(one, "__module__", None) or "").partition(".")[0]


def _on_cpu(state: Mapping[str, object]) -> StateDict:
    return cast("StateDict", tree_map_only(Tensor, _kept, dict(state)))


def _kept(tensor: Tensor) -> _Kept:
    return _Kept(tensor.detach().to("cpu", copy=True), tensor.device)


def _on_devices(state: StateDict) -> StateDict:
    return cast("StateDict", tree_map_only(_Kept, lambda kept: kept.tensor.to(kept.device, copy=True), state))


def _part(parameter: Tensor) -> Tensor:
    """Some elements, in the middle: the first rows of a vocabulary may be those of padding."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    middle = local.numel() // 2
    return local.detach().flatten()[middle : middle + _ELEMENTS]


def _are_equal(part: Tensor, kept: Tensor) -> bool:
    """Whether their bytes are, after a conversion of the module, such as to bf16; or nothing can be said."""
    if part.shape != kept.shape:
        return True
    return torch.equal(part.view(torch.uint8), kept.to(part.device, part.dtype).view(torch.uint8))
