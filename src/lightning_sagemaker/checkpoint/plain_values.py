# SPDX-License-Identifier: Apache-2.0
"""Plain values of attributes: copies, comparison, restoring in place, and sending to other processes."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sized
from operator import is_not
from typing import cast

import numpy as np
import torch
from torch import nn

from lightning_sagemaker._lightning import LightningModule
from lightning_sagemaker.checkpoint.rank_buffers import LARGEST, repeats

Values = dict[str, object]
"""Attribute -> value, of one object."""
_NUMBERS = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, np.generic)
EXACT = frozenset({int, float, bool, str, type(None)})
"""The most frequent types, which are tested first."""
_DICTS = frozenset({dict, OrderedDict, defaultdict, Counter})
_CONTAINERS = _DICTS | {list, set, deque}
"""Container types; not their subclasses, which may refuse changes, like the outputs of transformers' models."""
_SENT = frozenset({list, tuple, set, deque})
_LONGEST, _COPIED_BY_ENTRY = 100_000, 1000
"""Maximum entries of a container that is copied at each step, and of a dict whose values are copied as well."""
KEPT = frozenset({*vars(nn.Module()), *vars(LightningModule())})
"""Attributes of torch's and Lightning's modules."""


class Copy:
    """A value that may be changed in place, and a copy of its content."""

    def __init__(self, value: object) -> None:
        self.value = value
        if isinstance(value, torch.Tensor):
            self.within: object = value.detach().clone()
        elif isinstance(value, dict) and len(value) <= _COPIED_BY_ENTRY:
            self.within = {key: copied(entry) if is_plain(entry) else entry for key, entry in value.items()}
        else:
            self.within = copy.copy(value)

    def restored(self) -> object:
        """The value, with its content restored."""
        value, within = self.value, self.within
        if isinstance(value, torch.Tensor) and isinstance(within, torch.Tensor):
            if value.is_inference() or value.shape != within.shape:  # cannot be written in place
                return within.clone()
            if not repeats(value):
                value.detach().copy_(within)
        elif isinstance(value, np.ndarray) and isinstance(within, np.ndarray):
            if value.flags.writeable:
                np.copyto(value, within)
        else:
            _fill(
                value,
                {key: restored_value(entry) for key, entry in within.items()} if isinstance(within, dict) else within,
            )
        return value


def assign(owner: object, values: Values) -> None:
    """Set attributes, except for names that are now of a parameter, a buffer or a module."""
    if isinstance(owner, nn.Module):
        registered = owner._parameters.keys() | owner._buffers.keys() | owner._modules.keys()
        values = {name: value for name, value in values.items() if name not in registered}
    vars(owner).update(values)


def plain(owner: object) -> list[tuple[str, object]]:
    """An object's plain attributes."""
    return [(name, value) for name, value in vars(owner).items() if name not in KEPT and is_plain(value)]


def is_plain(value: object) -> bool:
    """Whether a value can be copied: containers are, whatever they contain."""
    if type(value) in EXACT or isinstance(value, (*_NUMBERS, tuple)):
        return True
    if isinstance(value, torch.Tensor):
        return not value.requires_grad and value.layout is torch.strided and value.numel() <= LARGEST
    if isinstance(value, np.ndarray):
        return value.size <= LARGEST and value.dtype != object
    return type(value) in _CONTAINERS and len(cast("Sized", value)) <= _LONGEST


def copied(value: object) -> object:
    """A copy of a plain value, for :func:`differs`."""
    return value if type(value) in EXACT or isinstance(value, (*_NUMBERS, tuple)) else Copy(value)


def restored_value(value: object) -> object:
    """The value that :func:`copied` has copied, restored."""
    return value.restored() if isinstance(value, Copy) else value


def numbers_of(values: Values) -> Values:
    """The values that are numbers or text."""
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
        return type(value) in _DICTS and len(value) <= _LONGEST and keys and all(map(is_sendable, value.values()))
    if isinstance(value, (list, tuple, set, deque)):
        return type(value) in _SENT and len(value) <= _LONGEST and all(map(is_sendable, value))
    if isinstance(value, torch.Tensor):  # also a loss that was not detached, but not a parameter
        return is_plain(value.detach() if value.grad_fn is not None else value)
    return isinstance(value, (*_NUMBERS, np.ndarray)) and is_plain(value)


def sent(value: object) -> object:
    """A value without a defaultdict's function, which may be the script's; the other rank has its own."""
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
    """The received value, in the rank's own container if it has one of the same type."""
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
