# SPDX-License-Identifier: Apache-2.0
"""What the order of a loader's samples follows from, beside the samples: random numbers, and what samplers remember.

An order is drawn anew in each epoch, from the global generators, from one that the script made, or from what a sampler keeps
(its epoch, a list that it shuffles in place). Captured when an iteration begins and restored before it is repeated, these
give the same order again.
"""

from __future__ import annotations

import functools
import hashlib
import random
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from lightning_sagemaker.checkpoint.random_state import (
    numpy_state,
    python_state,
    random_state,
    restore_numpy_state,
    restore_python_state,
    restore_random_state,
)

_DEPTH = 4
"""Attributes of attributes that are looked at: a loader's dataset's transform's generator."""
_ENTRIES = 64
"""Of a container, at most: those of transforms are short."""
_SCALARS = (bool, int, float, str, type(None))

Captured = dict[str, Any]


class Capture:
    """Captures and restores what a loader's order follows from.

    Args:
        loader: Its ``generator``, ``sampler``, ``batch_sampler``, ``dataset`` and ``collate_fn`` are looked at.

    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._before = {path: _digest(value) for path, value in self._sequences()}

    def take(self) -> Captured:
        """The state now, as plain containers and tensors."""
        lists = {path: value for path, value in self._sequences() if _digest(value) != self._before.get(path)}
        objects = {path: _state_of(value) for path, _, value in self._found() if _is_generator(value)}
        scalars = {path: value for path, _, value in self._found() if isinstance(value, _SCALARS)}
        return {"random": random_state(), "objects": objects, "scalars": scalars, "lists": lists}

    def put(self, captured: Captured) -> None:
        """Set what :meth:`take` gave, the global generators included."""
        self.put_objects(captured)
        restore_random_state(captured["random"])

    def put_objects(self, captured: Captured) -> None:
        """Set all but the global generators."""
        for path, set_value, value in self._found():
            if path in captured["objects"] and _is_generator(value):
                _restore(value, captured["objects"][path])
            elif path in captured["scalars"] and isinstance(value, _SCALARS) and value != captured["scalars"][path]:
                set_value(captured["scalars"][path])
            elif path in captured["lists"] and isinstance(value, (list, np.ndarray, torch.Tensor)):
                value[:] = _like(value, captured["lists"][path])

    def _found(self) -> Iterator[tuple[str, Any, Any]]:
        loader, seen = self._loader, set[int]()
        for name in ("dataset", "collate_fn"):  # what they count in a step is theirs; what they draw from is kept
            yield from _walk(name, getattr(loader, name, None), _DEPTH, seen, plain=False)
        for name in ("generator", "batch_sampler", "sampler"):
            yield from _walk(name, getattr(loader, name, None), _DEPTH, seen, plain=True)

    def _sequences(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Lists of numbers that samplers keep, which they may shuffle."""
        for path, _, value in self._found():
            if isinstance(value, (list, np.ndarray, torch.Tensor)):
                yield path, torch.as_tensor(np.asarray(value)).clone()


def _walk(path: str, value: Any, depth: int, seen: set[int], plain: bool) -> Iterator[tuple[str, Any, Any]]:
    """What is reached from an object: its path, how to set it, and its value; scalars and lists where ``plain``."""
    if value is None or id(value) in seen:
        return
    seen.add(id(value))
    if _is_generator(value):
        yield path, None, value
        return
    if depth == 0 or _is_foreign(value):
        return
    for name, entry, set_entry in _entries(value):
        place = f"{path}.{name}"
        if isinstance(entry, _SCALARS):
            if plain and set_entry is not None:
                yield place, set_entry, entry
        elif _is_numbers(entry):
            if plain:
                yield place, set_entry, entry
        else:
            yield from _walk(place, entry, depth - 1, seen, plain)


def _entries(value: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(value, functools.partial):
        parts: Mapping[str, Any] = {"func": value.func, **value.keywords, **_numbered(value.args)}
        yield from ((name, part, None) for name, part in parts.items())
    elif isinstance(value, types.MethodType):
        yield "__self__", value.__self__, None
    elif isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((name, cell.cell_contents, None) for name, cell in cells if _is_filled(cell))
    elif isinstance(value, (list, tuple)):
        yield from ((name, part, None) for name, part in _numbered(value[:_ENTRIES]).items())
    elif isinstance(value, dict):
        yield from ((str(name), part, None) for name, part in list(value.items())[:_ENTRIES])
    else:
        attributes = getattr(value, "__dict__", {})
        yield from ((name, part, functools.partial(setattr, value, name)) for name, part in attributes.items())


def _numbered(values: Any) -> dict[str, Any]:
    return {str(number): part for number, part in enumerate(values)}


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_foreign(value: Any) -> bool:
    """What belongs to the training, not to the data; a dataset may point to it."""
    if getattr(type(value), "holds_no_order", False):  # says so itself, as what reads from S3
        return True
    return isinstance(value, (type, types.ModuleType, torch.nn.Module, torch.Tensor, np.ndarray)) or type(
        value
    ).__module__.startswith(("lightning.pytorch.trainer", "pytorch_lightning.trainer"))


def _is_numbers(value: Any) -> bool:
    """Whether it could be an order: a list that may be shuffled in place."""
    if isinstance(value, list):
        return bool(value) and all(type(entry) is int for entry in value[:_ENTRIES]) and type(value[-1]) is int
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iu"
    return isinstance(value, torch.Tensor) and value.dim() == 1 and not value.is_floating_point()


def _is_generator(value: Any) -> bool:
    return isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random))


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().cpu()
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    return python_state(generator) if isinstance(generator, random.Random) else numpy_state(generator)


def _restore(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _unplain(state)
    elif isinstance(generator, random.Random):
        restore_python_state(generator, state)
    else:
        restore_numpy_state(generator, state)


def _plain(state: Any) -> Any:
    """NumPy's description of a generator without arrays, which a checkpoint of plain data cannot hold."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"words": [int(word) for word in state], "dtype": str(state.dtype)}
    return int(state) if isinstance(state, np.integer) else state


def _unplain(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    if state.keys() == {"words", "dtype"}:
        return np.array(state["words"], dtype=state["dtype"])
    return {name: _unplain(value) for name, value in state.items()}


def _like(value: Any, numbers: torch.Tensor) -> Any:
    if isinstance(value, list):
        return numbers.tolist()
    return numbers.numpy() if isinstance(value, np.ndarray) else numbers


def _digest(numbers: torch.Tensor) -> bytes:
    return hashlib.blake2b(numbers.numpy().tobytes(), digest_size=16).digest()
