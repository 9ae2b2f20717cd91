# SPDX-License-Identifier: Apache-2.0
"""Captures and restores the state that determines a loader's order: random states and sampler state.

An order is drawn in each epoch from the global generators, from the script's own generator, or from state that a custom
sampler, stream or loader keeps (its epoch, a list that it shuffles in place). Captured at the start of an iteration and
restored before it is repeated, these give the same order again.
"""

from __future__ import annotations

import functools
import io
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lightning_sagemaker.checkpoint.generators import generator_state, is_generator, restore_generator
from lightning_sagemaker.checkpoint.object_parts import is_filled, own_attributes
from lightning_sagemaker.checkpoint.own_generators import OwnGenerators
from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state

_DEPTH = 4
"""Maximum depth of attributes in the search for orders, and in the search at each batch; a list of stages is no depth."""
_ENTRIES, _OF_SAMPLER = 64, 10_000
"""Maximum entries of a container that are searched: lists of transforms are short, a sampler may have a list per class."""
_LISTED = 10_000
"""Maximum entries of a stream's list that may be an order: it is checked after each batch."""
_CONTAINERS = (list, dict, set, deque)
"""Types with a known length; others may have to read all their samples."""
_LISTS = (list, tuple, dict)
_SEARCHED = ("dataset", "collate_fn", "generator", "batch_sampler", "sampler")
_MODULES = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
"""Classes that belong to the training, though a dataset may refer to them."""
_TRAINERS = ("lightning.pytorch.trainer", "pytorch_lightning.trainer")
_SCALARS = (bool, int, float, str, type(None))

Captured = dict[str, Any]


class Capture:
    """Captures and restores the state that a loader's order depends on.

    Counters of samplers are restored. Custom streams and loaders may count something that belongs to state that cannot
    be captured, such as a shard that they hold: their counters are restored if nothing else has changed.

    Args:
        loader: Loader whose ``generator``, ``sampler``, ``batch_sampler``, ``dataset`` and ``collate_fn`` are searched.
        is_own: Whether it is not a ``DataLoader``, so that all of its attributes are searched.

    """

    def __init__(self, loader: Any, is_own: bool = False) -> None:
        self._loader, self._is_own = loader, is_own
        self._generators = OwnGenerators(self._roots, _MODULES)
        found = list(self._found())
        self._kept = [one.value for one in found if one.kind is _Kind.ORDER]  # their ids are not reused
        self._before = {id(value): _digest(value) for value in self._kept}
        self._lists = {one.path: [*one.value] for one in found if one.kind is _Kind.LIST}
        self._counts = {one.path: one.value for one in found if one.kind is _Kind.COUNT}
        self._first = _scalars(found, counted=True)
        self._others = _fingerprints(found)

    def take(self) -> Captured:
        """The current state, as plain containers and tensors."""
        return {"random": random_state(), **self.take_objects()}

    def take_objects(self) -> Captured:
        """The current state without the global generators."""
        found = list(self._found())
        counted = _scalars(found, counted=True) if _fingerprints(found) == self._others else {}
        orders = [one for one in found if one.kind is _Kind.ORDER]
        near = [one for one in found if one.kind is _Kind.GENERATOR]
        return {
            "objects": {
                **self._generators.take(but={id(one.value) for one in near}),
                **{one.path: generator_state(one.value) for one in near},
            },
            "scalars": _scalars(found, counted=False),
            "counted": {path: value for path, value in counted.items() if value != self._first.get(path)},
            "counts": {
                one.path: one.value
                for one in found
                if one.kind is _Kind.COUNT and one.value != self._counts.get(one.path, one)
            },
            "lists": {
                one.path: _numbers(one.value) for one in orders if _digest(one.value) != self._before.get(id(one.value))
            },
            "permuted": {
                one.path: places
                for one in found
                if one.kind is _Kind.LIST and (places := _places(self._lists.get(one.path), one.value)) is not None
            },
        }

    def put(self, captured: Captured) -> None:
        """Restore :meth:`take`, including the global generators."""
        self.put_objects(captured)
        restore_random_state(captured["random"])

    def put_objects(self, captured: Captured, but: Collection[int] = ()) -> None:
        """Restore :meth:`take_objects`, except for generators of the ids ``but``."""
        self._generators.put(captured["objects"], but)
        scalars = self._first | captured.get("counted", {}) | captured["scalars"]
        counts, permuted = self._counts | captured.get("counts", {}), captured.get("permuted", {})
        for path, kind, value, set_value in self._found():
            if kind is _Kind.GENERATOR:
                if path in captured["objects"] and id(value) not in but:
                    restore_generator(value, captured["objects"][path])
            elif kind is _Kind.SCALAR and value != scalars.get(path, value) and set_value is not None:
                set_value(scalars[path])
            elif kind is _Kind.COUNT and set_value is not None:
                set_value(counts.get(path, value))
            elif kind is _Kind.LIST and len(self._lists.get(path, ())) == len(value):  # before what is in it is found
                value[:] = [self._lists[path][place] for place in permuted.get(path, range(len(value)))]
            elif kind is _Kind.ORDER and path in captured["lists"]:
                value[:] = _like(value, captured["lists"][path])

    def generators(self) -> set[int]:
        """Ids of the generators that are captured."""
        near = {id(one.value) for one in self._found() if one.kind is _Kind.GENERATOR}
        return near | {id(generator) for _, generator in self._generators.now()}

    def iterators(self) -> list[str]:
        """Names of iterators that a custom stream or loader keeps across epochs."""
        others = (one for one in self._found() if one.kind is _Kind.OTHER and one.is_counted)
        iterators = (one for one in others if isinstance(one.value, Iterator) and not isinstance(one.value, io.IOBase))
        return [one.path.split(".", 1)[1] for one in iterators]

    def _roots(self) -> Iterator[tuple[str, object]]:
        yield from ((name, getattr(self._loader, name, None)) for name in _SEARCHED)
        if self._is_own:
            yield "loader", self._loader

    def _found(self) -> Iterator[_Found]:
        loader = self._loader
        seen = set() if self._is_own else {id(loader)}  # a sampler may refer to its loader
        dataset = getattr(loader, "dataset", None)  # counters of a map-style dataset are not part of the order
        yield from _walk("dataset", dataset, _DEPTH, seen, _is_short if isinstance(dataset, IterableDataset) else None)
        yield from _walk("collate_fn", getattr(loader, "collate_fn", None), _DEPTH, seen, None)
        for name in ("generator", "batch_sampler", "sampler"):
            yield from _walk(name, getattr(loader, name, None), _DEPTH, seen, _is_order)
        if self._is_own:
            yield from _walk("loader", loader, _DEPTH, seen, _is_short)


class _Kind(Enum):
    GENERATOR = 1
    SCALAR = 2
    ORDER = 3
    OTHER = 4
    LIST = 5
    """Of objects that may be shuffled in place."""
    COUNT = 6
    """In a dict of a sampler."""


class _Found(NamedTuple):
    """An object that is reached from a loader."""

    path: str
    kind: _Kind
    value: Any
    set_value: Callable[[Any], None] | None = None

    @property
    def is_counted(self) -> bool:
        """Whether the object belongs to a custom stream or loader."""
        return self.path.split(".", 1)[0] in ("dataset", "loader")


def _scalars(found: list[_Found], counted: bool) -> dict[str, Any]:
    return {one.path: one.value for one in found if one.kind is _Kind.SCALAR and one.is_counted is counted}


def _fingerprints(found: list[_Found]) -> dict[str, tuple[int, int]]:
    """Fingerprints of the state of custom streams and loaders that cannot be captured."""
    others = (one for one in found if one.is_counted and one.kind in (_Kind.ORDER, _Kind.OTHER, _Kind.LIST))
    return {one.path: (id(one.value), len(one.value) if type(one.value) in _CONTAINERS else 0) for one in others}


def _walk(
    path: str, value: Any, depth: int, seen: set[int], is_order: Callable[[Any], bool] | None
) -> Iterator[_Found]:
    """The relevant objects that are reached from ``value``: generators, and lists for which ``is_order`` is true."""
    if value is None or id(value) in seen:
        return
    seen.add(id(value))
    if is_generator(value):
        yield _Found(path, _Kind.GENERATOR, value)
        return
    if depth == 0 or _is_foreign(value):
        return
    for name, entry, set_entry in _entries(value, is_order is _is_order):
        place = f"{path}.{name}"
        if isinstance(entry, _SCALARS):
            if is_order is not None and set_entry is not None:
                yield _Found(place, _Kind.COUNT if isinstance(value, dict) else _Kind.SCALAR, entry, set_entry)
        elif is_order is not None and is_order(entry):
            yield _Found(place, _Kind.ORDER, entry)
        else:
            if is_order is not None and isinstance(entry, list) and (is_order is _is_order or len(entry) <= _LISTED):
                yield _Found(place, _Kind.LIST, entry)
            elif is_order is not None and set_entry is not None and not is_generator(entry):
                yield _Found(place, _Kind.OTHER, entry)
            is_list_of = isinstance(entry, _LISTS) and not isinstance(value, _LISTS)
            yield from _walk(place, entry, depth if is_list_of else depth - 1, seen, is_order)


def _entries(value: Any, is_sampler: bool) -> Iterator[tuple[str, Any, Any]]:
    most = _OF_SAMPLER if is_sampler else _ENTRIES
    if isinstance(value, functools.partial):
        parts: Mapping[str, Any] = {"func": value.func, **value.keywords, **_numbered(value.args)}
        yield from ((name, part, None) for name, part in parts.items())
    elif isinstance(value, types.MethodType):
        yield "__self__", value.__self__, None
    elif isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((name, cell.cell_contents, None) for name, cell in cells if is_filled(cell))
    elif isinstance(value, (list, tuple)):
        yield from ((name, part, None) for name, part in _numbered(value[:most]).items())
    elif isinstance(value, dict):
        for name, part in list(value.items())[:most]:
            yield str(name), part, functools.partial(value.__setitem__, name) if is_sampler else None
    else:
        attributes = own_attributes(value).items()
        yield from ((name, part, functools.partial(setattr, value, name)) for name, part in attributes)


def _numbered(values: Any) -> dict[str, Any]:
    return {str(number): part for number, part in enumerate(values)}


def _is_foreign(value: Any) -> bool:
    """Whether a value belongs to the training rather than to the data, even if a dataset refers to it."""
    if getattr(type(value), "holds_no_order", False):  # declared by the class, as by those that read from S3
        return True
    others = (type, types.ModuleType, torch.nn.Module, torch.Tensor, np.ndarray, _BaseDataLoaderIter)
    return isinstance(value, others) or type(value).__module__.startswith(_TRAINERS)


def _is_order(value: Any) -> bool:
    """Whether ``value`` may be an order: a list of numbers that may be shuffled in place."""
    if isinstance(value, list):
        return bool(value) and all(type(entry) is int for entry in value[:_ENTRIES]) and type(value[-1]) is int
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.dtype.kind in "iu"
    return isinstance(value, torch.Tensor) and value.dim() > 0 and not value.is_floating_point()


def _is_short(value: Any) -> bool:
    """Whether ``value`` may be a stream's order: a list of numbers or of names, such as files. Arrays count as data."""
    if not isinstance(value, list) or not 0 < len(value) <= _LISTED:
        return False
    return all(type(entry) is int for entry in value) or all(type(entry) is str for entry in value)


def _numbers(value: Any) -> torch.Tensor:
    """An order as numbers; for names, their ranks in sorted order."""
    if isinstance(value, list) and type(value[0]) is str:
        places = {name: place for place, name in enumerate(sorted(map(str, value)))}
        return torch.tensor([places[str(name)] for name in value])
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    return torch.as_tensor(np.asarray(value)).clone()


def _places(before: list[Any] | None, now: list[Any]) -> list[int] | None:
    """The earlier places of a list's entries; None if they are where they were, or others."""
    if before is None or len(before) != len(now) or all(map(is_, before, now)):
        return None
    places: dict[int, list[int]] = {}
    for place in reversed(range(len(before))):
        places.setdefault(id(before[place]), []).append(place)
    try:
        return [places[id(entry)].pop() for entry in now]
    except (KeyError, IndexError):
        return None


def _like(value: Any, numbers: torch.Tensor) -> Any:
    if isinstance(value, list) and type(value[0]) is str:
        names = sorted(map(str, value))
        return [names[place] for place in numbers.tolist()] if len(numbers) == len(names) else value
    if isinstance(value, list):
        return numbers.tolist()
    return numbers.numpy() if isinstance(value, np.ndarray) else numbers


def _digest(order: Any) -> int:
    """A hash, which is another one in other processes."""
    if isinstance(order, list):
        return hash(tuple(order))
    array = order if isinstance(order, np.ndarray) else _numbers(order).numpy()
    return hash(array.tobytes())
