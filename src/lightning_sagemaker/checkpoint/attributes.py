# SPDX-License-Identifier: Apache-2.0
"""Plain attributes that a script's own classes change as they train: counters, lists of outputs, running averages.

No ``state_dict`` has them. Checkpoints hold each rank's numbers of the epoch. In a job that recovers in itself, the
remaining ranks have those of the step that they return to, and a replacement gets those of the rank that sends it the
training state.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from operator import is_not
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import nn
from torchmetrics import Metric

from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker._lightning import Callback, LightningModule, rank_zero_warn
from lightning_sagemaker.checkpoint.epoch_names import names_reset
from lightning_sagemaker.checkpoint.module_walk import Children
from lightning_sagemaker.checkpoint.rank_buffers import LARGEST, repeats
from lightning_sagemaker.checkpoint.records import LIBRARIES, records_in
from lightning_sagemaker.checkpoint.stored_values import LARGEST_STORED, NotStored, is_large, loaded, stored

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer

Values = dict[str, object]
"""Attributes of one object."""
Held = list[tuple[object, Values, frozenset[str]]]
"""Objects, copies of their attributes, and the names of all that they have."""

_NUMBERS = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, np.generic)
_EXACT = frozenset({int, float, bool, str, type(None)})
"""The most frequent of them, recognized sooner."""
_DICTS = frozenset({dict, OrderedDict, defaultdict, Counter})
_CONTAINERS = _DICTS | {list, set, deque}
"""Not what derives from them: it may refuse to be changed, as the outputs of transformers' models do."""
_LONGEST, _COPIED_BY_ENTRY = 100_000, 1000
"""Entries of a container that is copied at each step, and of a dict whose values are copied as well."""
_KEPT = frozenset({*vars(nn.Module()), *vars(LightningModule())})
"""Attributes of torch's and Lightning's own."""


class PlainAttributes:
    """Those of a Trainer's module, of its parts and of its callbacks.

    Numbers and text, tensors and arrays of up to 2^20 elements, and lists, dicts, sets and deques of up to 100,000 entries.
    What is in a container stays the same object; values of a dict are copied like attributes. Records, such as an
    ``AverageMeter``, are looked into (:func:`~.records.records_in`). Left out are other objects, metrics, and callbacks that
    have a ``state_dict``.

    Args:
        trainer: Whose they are.
        children: Returns :func:`~.module_walk.named_modules` of its module.

    """

    def __init__(self, trainer: Trainer, children: Callable[[], Children]) -> None:
        self._trainer, self._children = trainer, children
        self._seen: Children | None = None
        self._owners: dict[str, object] = {}
        self._of_epoch: set[str] = set()
        self._begun: Held | None = None
        self._warned: set[tuple[str, str]] = set()

    def _of(self) -> dict[str, object]:
        """Whose attributes they are, by name."""
        children = self._children()
        if children is not self._seen:
            parts = {f"module.{name}".rstrip("."): child for name, child in children if not _is_library(type(child))}
            callbacks = enumerate(filter(_is_own, callbacks_of(self._trainer)))
            self._seen, self._owners = (
                children,
                {
                    **{name: part for name, part in parts.items() if not isinstance(part, Metric)},
                    **{f"callbacks.{number}.{type(one).__name__}": one for number, one in callbacks},
                },
            )
            self._of_epoch = set().union(*map(names_reset, {*map(type, self._owners.values())}))
        return self._owners

    def _all(self) -> Iterator[tuple[str, object]]:
        """The same, with the records that they have now."""
        for name, owner in self._of().items():
            yield name, owner
            for key, value in [*vars(owner).items()]:
                if key not in _KEPT and type(value) not in _EXACT:
                    yield from records_in(f"{name}.{key}", value, _is_plain)

    def begin(self) -> None:
        """The fit begins, or has: in a replacement before it takes over anything."""
        if self._begun is None:
            self._begun = self.now()

    def now(self) -> Held:
        """Copies of the present values, for :meth:`put`."""
        return [
            (owner, {name: copied(value) for name, value in plain(owner)}, frozenset(vars(owner)))
            for _, owner in self._all()
        ]

    def put(self, held: Held) -> None:
        """Restore what :meth:`now` has returned; attributes that were set since are removed."""
        for owner, values, names in held:
            for name in [name for name, _ in plain(owner) if name not in names]:
                del vars(owner)[name]
            assign(owner, {name: _restored(value) for name, value in values.items()})

    @contextmanager
    def of_another_rank(self, start: Held) -> Iterator[None]:
        """A pass on another rank's batches sees the numbers of a step's start, and changes none of this rank's."""
        own = [(owner, _numbers(dict(plain(owner)))) for _, owner in self._all()]
        for owner, values, _ in start:
            assign(owner, _numbers(values))
        try:
            yield
        finally:
            for owner, values in own:
                assign(owner, values)

    def changed(self) -> dict[str, Values]:
        """What has changed since the fit began, by owner, for a replacement or a later job, which begin in the same way.

        What differs between ranks from the start, such as their numbers, is not among it.
        """
        begun = {id(owner): values for owner, values, _ in self._begun or []}
        found = {
            name: {
                key: sent(value)
                for key, value in vars(owner).items()
                if key not in _KEPT and _is_sendable(value) and differs(begun.get(id(owner), {}).get(key), value)
            }
            for name, owner in self._all()
        }
        return {name: values for name, values in found.items() if values}

    def adopt(self, values: Mapping[str, Values]) -> None:
        """Take over what :meth:`changed` has returned on another rank, or in an earlier job."""
        owners = dict(self._all())
        for name in values.keys() & owners.keys():
            own = vars(owners[name])
            assign(owners[name], {key: filled(own.get(key), value) for key, value in values[name].items()})

    def stored(self) -> dict[str, Values]:
        """An epoch's own numbers of :meth:`changed`, as a checkpoint can hold them.

        Others are not stored: as in Lightning, a script begins with those that it sets.
        """
        found: dict[str, Values] = {}
        for owner, values in self.changed().items():
            is_epochs = not self._of_epoch.isdisjoint(owner.split("."))  # a record that is reset by its name
            for name, value in values.items():
                if not is_epochs and name not in self._of_epoch:
                    continue
                with contextlib.suppress(NotStored):
                    entry = stored(value)
                    if not is_large(entry):
                        found.setdefault(owner, {})[name] = entry
                    elif (owner, name) not in self._warned:
                        self._warned.add((owner, name))
                        rank_zero_warn(
                            f"Checkpoints do not hold {owner}.{name}, which is larger than {LARGEST_STORED >> 20} MiB: a"
                            " resumed run begins without it. HINT: keep sums or a metric of torchmetrics."
                        )
        return found

    def load(self, values: Mapping[str, Values]) -> None:
        """Take over what :meth:`stored` has returned in an earlier job."""
        device = self._trainer.strategy.root_device
        self.adopt(
            {name: {key: loaded(value, device) for key, value in found.items()} for name, found in values.items()}
        )


class Copy:
    """A value that may be changed in place, and what was in it."""

    def __init__(self, value: object) -> None:
        self.value = value
        if isinstance(value, torch.Tensor):
            self.within: object = value.detach().clone()
        elif isinstance(value, dict) and len(value) <= _COPIED_BY_ENTRY:
            self.within = {key: copied(entry) if _is_plain(entry) else entry for key, entry in value.items()}
        else:
            self.within = copy.copy(value)

    def restored(self) -> object:
        """The value, with what was in it."""
        value, within = self.value, self.within
        if isinstance(value, torch.Tensor) and isinstance(within, torch.Tensor):
            if value.is_inference() or value.shape != within.shape:  # it cannot be written to
                return within.clone()
            if not repeats(value):
                value.detach().copy_(within)
        elif isinstance(value, np.ndarray) and isinstance(within, np.ndarray):
            if value.flags.writeable:
                np.copyto(value, within)
        else:
            _fill(
                value, {key: _restored(entry) for key, entry in within.items()} if isinstance(within, dict) else within
            )
        return value


def _is_own(callback: Callback) -> bool:
    """Whether a callback is the script's own, and has no ``state_dict``."""
    inherited = [kind for kind in type(callback).__mro__ if kind is not Callback and kind is not object]
    return type(callback).state_dict is Callback.state_dict and not any(map(_is_library, inherited))


def _is_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in LIBRARIES


def assign(owner: object, values: Values) -> None:
    """Set attributes, unless the name is by now that of a parameter, a buffer or a module."""
    if isinstance(owner, nn.Module):
        registered = owner._parameters.keys() | owner._buffers.keys() | owner._modules.keys()
        values = {name: value for name, value in values.items() if name not in registered}
    vars(owner).update(values)


def plain(owner: object) -> list[tuple[str, object]]:
    """An object's plain attributes."""
    return [(name, value) for name, value in vars(owner).items() if name not in _KEPT and _is_plain(value)]


def _is_plain(value: object) -> bool:
    if type(value) in _EXACT or isinstance(value, (*_NUMBERS, tuple)):
        return True
    if isinstance(value, torch.Tensor):
        return not value.requires_grad and value.layout is torch.strided and value.numel() <= LARGEST
    if isinstance(value, np.ndarray):
        return value.size <= LARGEST and value.dtype != object
    return type(value) in _CONTAINERS and len(cast("Sized", value)) <= _LONGEST


def copied(value: object) -> object:
    """A copy of a plain value, for :func:`differs`."""
    return value if type(value) in _EXACT or isinstance(value, (*_NUMBERS, tuple)) else Copy(value)


def _restored(value: object) -> object:
    return value.restored() if isinstance(value, Copy) else value


def _numbers(values: Values) -> Values:
    return {name: value for name, value in values.items() if isinstance(value, _NUMBERS)}


def differs(first: object, value: object) -> bool:
    """Whether a value differs from a copy of an earlier one."""
    if isinstance(value, _NUMBERS):
        return isinstance(first, Copy) or (first is not value and first != value)
    if not isinstance(first, Copy) or first.value is not value:
        return first is not value
    if isinstance(value, torch.Tensor) and isinstance(first.within, torch.Tensor):
        return not torch.equal(value, first.within)
    if isinstance(value, np.ndarray):
        return not np.array_equal(value, np.asarray(first.within))
    if isinstance(value, dict) and isinstance(first.within, dict):
        within = first.within
        return value.keys() != within.keys() or any(differs(within[key], entry) for key, entry in value.items())
    now, before = list(cast("Iterable[object]", value)), list(cast("Iterable[object]", first.within))
    return len(now) != len(before) or any(map(is_not, now, before))


def is_sendable(value: object) -> bool:
    """Whether a value can be sent to another rank."""
    if isinstance(value, dict):
        keys = all(isinstance(key, (*_NUMBERS, tuple)) for key in value)
        return type(value) in _DICTS and keys and all(map(is_sendable, value.values()))
    if type(value) in (list, tuple, set, deque):
        return all(map(is_sendable, cast("Iterable[object]", value)))
    if isinstance(value, torch.Tensor):  # a loss that was not detached, but no parameter
        return _is_plain(value.detach() if value.grad_fn is not None else value)
    return isinstance(value, (*_NUMBERS, np.ndarray)) and _is_plain(value)


def _is_sendable(value: object) -> bool:
    return (_is_plain(value) or isinstance(value, torch.Tensor)) and is_sendable(value)


def sent(value: object) -> object:
    """A defaultdict may have a function of the script, which is not sent: the other rank has one of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {key: sent(entry) for key, entry in value.items()}
    if type(value) is deque:
        return deque(map(sent, value), value.maxlen)
    if type(value) in (list, tuple):
        return type(value)(map(sent, cast("Iterable[object]", value)))  # type: ignore[call-arg]
    return value


def filled(own: object, value: object) -> object:
    """The received value, in the rank's own container if it has one of this kind."""
    if isinstance(value, dict) and type(own) in _DICTS:
        before = cast("dict[object, object]", own)
        _fill(own, {key: filled(before.get(key), entry) for key, entry in value.items()})
        return own
    if type(own) is type(value) and type(own) in _CONTAINERS:
        _fill(own, value)
        return own
    return value


def _fill(container: object, within: object) -> None:
    container.clear()  # type: ignore[attr-defined]
    getattr(container, "extend" if isinstance(container, (list, deque)) else "update")(within)
