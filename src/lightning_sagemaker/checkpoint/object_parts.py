# SPDX-License-Identifier: Apache-2.0
"""Objects that are reachable from an object of a script: its attributes and entries, and globals in its class's code.

No code of the script is called: attributes are read from ``__dict__``, and globals are looked up by the names in the code.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from lightning_sagemaker.checkpoint.records import LIBRARIES
from lightning_sagemaker.checkpoint.static_view import in_class, own_attributes

_ENTRIES = 256
"""Maximum entries of a container that are searched: lists of transforms are short."""
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, range, slice, types.NoneType, torch.Tensor, np.ndarray)
_QUICK = frozenset((*_PLAIN, torch.nn.Parameter))
_TABLES = frozenset({"pandas", "polars", "pyarrow", "PIL", "scipy", "h5py", "zarr", "cv2", "sklearn"})
"""Packages whose objects are data."""
_LEAVES = (
    *(
        "lightning.pytorch.trainer",
        "lightning.pytorch.loops",
        "lightning.pytorch.strategies",
        "lightning.pytorch.loggers",
    ),
    *(
        "pytorch_lightning.trainer",
        "pytorch_lightning.loops",
        "pytorch_lightning.strategies",
        "pytorch_lightning.loggers",
    ),
    *("lightning.fabric", "lightning_fabric", "torch.optim", "torch.distributed", "torch.storage", "torch.cuda"),
    *("torch.utils.data._utils", "lightning_sagemaker"),
)
"""Modules whose objects belong to the training, or do not refer to generators."""
_OURS = ("lightning_sagemaker.data", "lightning_sagemaker.recipes")
"""Modules of this package whose objects refer to a script's data."""
_CODE = LIBRARIES | _TABLES | {"numpy", "torchvision", "torchaudio", "timm", "datasets", "tokenizers", "albumentations"}
"""Packages whose code does not refer to a script's globals."""
_OPEN = frozenset({"__main__", "builtins", "functools", "collections", "random", "types", "itertools"})
"""Modules of the standard library whose objects are searched."""
_INTERNAL = frozenset(vars(torch.nn.Module()))
_WATCH = "_lightning_sagemaker"


class Part(NamedTuple):
    """A named entry of a container, such as an object's attributes."""

    name: str
    container: Mapping[str, object] | Sequence[object]
    key: str | int
    is_global: bool = False

    def value(self) -> object:
        """The current value; None if there is none."""
        try:
            return self.container[self.key]  # type: ignore[index]
        except (KeyError, IndexError):
            return None


def declares_no_order(kind: type) -> bool:
    """Whether a class says that its objects hold no order, as those that read from S3 do."""
    return in_class(kind, "holds_no_order") and bool(kind.holds_no_order)  # type: ignore[attr-defined]


def is_searched(kind: type, leaves: tuple[str, ...] = ()) -> bool:
    """Whether objects of a class are searched.

    Args:
        kind: The class.
        leaves: Names of further modules whose classes, and subclasses of these, are not searched.

    """
    module = _module_of(kind)
    root = module.partition(".")[0]
    if issubclass(kind, _PLAIN) or root in _TABLES or declares_no_order(kind):
        return False
    if not issubclass(kind, (type, torch.nn.Module)):
        if root in sys.stdlib_module_names and root not in _OPEN:
            return False
        if module.startswith(_LEAVES) and not module.startswith(_OURS):
            return False
    return not leaves or not any(_module_of(base).startswith(leaves) for base in kind.__mro__)


def parts_of(value: object) -> Iterator[Part]:
    """The parts of an object to search."""
    kind = type(value)
    yield from _entries(value, kind)
    if isinstance(value, torch.nn.Module):
        yield from _parts_of_module(value)
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield from _held({"__self__": value.__self__, "__func__": value.__func__})
    elif isinstance(value, functools.partial):
        arguments = {str(number): one for number, one in enumerate(value.args)}
        yield from _held({"func": value.func, **arguments, **value.keywords})
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _held({"__func__": value.__func__})
    elif isinstance(value, property):
        yield from _held({"fget": value.fget, "fset": value.fset})
    elif isinstance(value, type):
        yield from _parts_of_class(value)
    elif not isinstance(value, types.ModuleType):
        yield from _attributes(value, kind)
    if _is_of_script(_module_of(kind)):
        yield _class(kind)


def _entries(value: object, kind: type) -> Iterator[Part]:
    """Entries of a container whose class does not override how entries are read."""
    if isinstance(value, dict) and getattr(kind, "__getitem__", None) is dict.__getitem__:
        yield from _leading(value, [*islice(dict.keys(value), _ENTRIES)])
    elif isinstance(value, (list, tuple, deque)) and getattr(kind, "__getitem__", None) in _INDEXED:
        yield from _leading(value, range(min(len(value), _ENTRIES)))


_INDEXED = (list.__getitem__, tuple.__getitem__, deque.__getitem__)


def _held(parts: Mapping[str, object]) -> Iterator[Part]:
    return _leading(parts, parts)


def _leading(container: Mapping[str, object] | Sequence[object], keys: Iterable[str | int]) -> Iterator[Part]:
    for key in keys:
        part = Part(str(key), container, key)
        if type(part.value()) not in _QUICK:
            yield part


def _attributes(value: object, kind: type) -> Iterator[Part]:
    attributes = own_attributes(value)
    yield from _leading(attributes, [name for name in [*attributes] if not str(name).startswith(_WATCH)])
    yield from _held(dict(_slots(value, kind)))


def _slots(value: object, kind: type) -> Iterator[tuple[str, object]]:
    for base in kind.__mro__:
        for name, slot in [*vars(base).items()] if _is_of_script(_module_of(base)) else ():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # empty
                    yield name, slot.__get__(value)


def _parts_of_module(module: torch.nn.Module) -> Iterator[Part]:
    attributes = vars(module)
    yield from _leading(attributes, [name for name in [*attributes] if name not in _INTERNAL])
    yield from _leading(module._modules, [*module._modules])


def _parts_of_class(kind: type) -> Iterator[Part]:
    """Generators in the class's attributes, and its functions, whose code may refer to more."""
    attributes = vars(kind)
    yield from _leading(attributes, [*attributes])
    yield from (_class(base) for base in kind.__bases__ if _is_of_script(_module_of(base)))


def _class(kind: type) -> Part:
    name = f"class {kind.__module__}.{kind.__qualname__}"
    return Part(name, {name: kind}, name, is_global=True)


def _parts_of_function(function: types.FunctionType) -> Iterator[Part]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    yield from _held({name: cell.cell_contents for name, cell in cells if is_filled(cell)})
    yield from _held({str(number): one for number, one in enumerate(function.__defaults__ or ())})
    yield from _held(function.__kwdefaults__ or {})
    if _is_of_script(_module_of(function)):
        yield from _globals(function.__globals__, _names(function.__code__), set())


def _globals(scope: dict[str, object], names: frozenset[str], seen: set[int]) -> Iterator[Part]:
    """Globals that code names, also through modules that it names."""
    seen.add(id(scope))
    for name in sorted(names & scope.keys()):
        value = scope[name]
        if isinstance(value, types.ModuleType):
            if _is_of_script(value.__name__) and id(vars(value)) not in seen:
                yield from _globals(vars(value), names, seen)
        elif not isinstance(value, (type, types.FunctionType)) or _is_of_script(_module_of(value)):
            yield Part(f"global {scope.get('__name__')}.{name}", scope, name, is_global=True)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    within = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return frozenset(code.co_names).union(*map(_names, within))


def _module_of(value: type | types.FunctionType) -> str:
    """Name of the module that defines a class or function; unknown for some that are written in C."""
    module: object = value.__module__
    return module if isinstance(module, str) else "builtins"


@functools.lru_cache(maxsize=4096)
def _is_of_script(module: str) -> bool:
    root = module.partition(".")[0]
    if root == "lightning_sagemaker":
        return module.startswith("lightning_sagemaker.recipes")
    return root == "__main__" or (root not in _CODE and root not in sys.stdlib_module_names)


def is_filled(cell: types.CellType) -> bool:
    """Whether a closure's cell has a value other than None."""
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
