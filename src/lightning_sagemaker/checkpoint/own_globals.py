# SPDX-License-Identifier: Apache-2.0
"""The classes of a script's own hyperparameters and callbacks, so that its checkpoints may contain them.

A checkpoint is loaded as data: write access to its folder does not allow running code. This refuses objects among the
hyperparameters, which many libraries have (a loss, an encoder fitted to the data), even if the script has just created
the same ones. So exactly the classes of the script's own objects are allowed in the checkpoint.
"""

from __future__ import annotations

import _compat_pickle
import contextlib
import functools
import io
import os
import pickle
import pickletools
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import EnumMeta
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch

from lightning_sagemaker._compat.safe_names import safe_names

if TYPE_CHECKING:
    from lightning_sagemaker._types import PathLike, StateDict


_RUNS_CODE = frozenset(
    """
    asyncio builtins code codeop ctypes functools importlib io marshal multiprocessing nt operator os pickle platform posix
    pty runpy shutil signal socket subprocess sys tempfile threading timeit types webbrowser
    """.split()  # noqa: SIM905
)
"""Modules whose functions run or reach what they are given, and those in C beneath them, as ``_functools``."""
_DATA = ("bytearray", "complex", "frozenset", "object", "range", "set", "slice")
_HOLDS_DATA = frozenset([*(f"builtins.{name}" for name in _DATA), "functools.partial", "types.SimpleNamespace"])
"""Of these modules: a ``partial`` is not called by reading it."""
_READ = 16 * 2**20
"""Bytes of an object that are searched for names."""


def own_globals(values: Iterable[object]) -> dict[str, object]:
    """Classes and functions with which ``pickle`` would write these values, except those that run code.

    Args:
        values: Hyperparameters and states, as in a checkpoint. What cannot be pickled is skipped.

    Returns:
        Each by its name in the file.

    """
    found: StateDict = {}
    for module, name in {one for value in values for one in _Names().of(value)}:
        one = _resolve(module, name)
        if one is not None:
            found[f"{module}.{name}"] = one
    return found


def refused_names(value: object) -> set[str]:
    """What ``torch.load(weights_only=True)`` would refuse of an object; its class, if it cannot be written at all."""
    names = _Names()
    found = {f"{module}.{name}" for module, name in names.of(value)} - safe_names().keys()
    return found if names.is_written else found | {f"{type(value).__module__}.{type(value).__qualname__}"}


@contextlib.contextmanager
def may_hold(values: Callable[[], Iterable[object]]) -> Iterator[None]:
    """Within the block ``torch.load(weights_only=True)`` loads objects of these values' classes.

    Args:
        values: Called only if a file is refused otherwise.

    """
    load: Callable[..., object] = torch.load
    thread = threading.get_ident()

    @functools.wraps(load)
    def read(file: PathLike | IO[bytes], *arguments: object, **options: object) -> object:
        try:
            return load(file, *arguments, **options)
        except pickle.UnpicklingError as error:
            if threading.get_ident() != thread or not options.get("weights_only") or "weights_only" not in str(error):
                raise
        if not isinstance(file, (str, os.PathLike)):
            file.seek(0)
        own = {"weights_only": False, "pickle_module": _pickle_of(own_globals(values()))}
        return load(file, *arguments, **{**options, **own})

    vars(torch)["load"] = read  # Lightning calls it with fixed arguments, without a hook for how to read
    try:
        yield
    finally:
        vars(torch)["load"] = load


def _pickle_of(names: Mapping[str, object]) -> types.ModuleType:
    """A ``pickle`` module for ``torch.load`` that knows only these names and torch's own."""
    allowed = {**safe_names(), **names, "builtins.getattr": _member}

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            path = ".".join(_present_name(module, name))
            if path not in allowed:
                raise pickle.UnpicklingError(f"weights_only: {path} is among neither hyperparameters nor callbacks")
            return allowed[path]

    found = types.ModuleType("pickle")
    vars(found).update(Unpickler=Unpickler, load=lambda file, **options: Unpickler(file, **options).load())
    return found


def _member(kind: object, name: str) -> object:
    """What Python 3.11 first wrote of an ``Enum``'s member; of anything else an attribute leads anywhere.

    Callbacks among hyperparameters have the module's ``log`` from Lightning, which gives it again: not needed.
    """
    if isinstance(kind, torch.nn.Module) and name in ("log", "log_dict"):
        return None
    if isinstance(kind, EnumMeta) and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError(
        f"weights_only: getattr of {type(kind).__name__} is among neither hyperparameters nor callbacks"
    )


class _Names(pickle.Pickler):
    """Writes an object without its numbers, as :func:`torch.save` would: each global is named in one place."""

    def __init__(self) -> None:
        self._text = io.BytesIO()
        self.is_written = True
        super().__init__(self, protocol=2)

    def write(self, text: bytes) -> int:
        if self._text.tell() > _READ:
            raise OverflowError
        return self._text.write(text)

    def persistent_id(self, value: object) -> str | None:
        return "tensor" if isinstance(value, (torch.Tensor, torch.UntypedStorage)) else None

    def reducer_override(self, value: object) -> str | tuple[Any, ...]:
        if type(value) is np.ndarray and value.dtype != object:
            empty: str | tuple[Any, ...] = np.empty(0, value.dtype).__reduce__()
            return empty
        return NotImplemented  # type: ignore[no-any-return]

    def of(self, value: object) -> set[tuple[str, str]]:
        """What is named until something cannot be written."""
        found = set[tuple[str, str]]()
        try:
            self.dump(value)
        except Exception as error:  # an object may raise anything; Lightning leaves such hyperparameters out
            self.is_written = isinstance(error, OverflowError)
        with contextlib.suppress(Exception):  # the end is missing then
            for operation, words, _ in pickletools.genops(self._text.getvalue()):
                if operation.name == "GLOBAL":
                    found.add(_present_name(*str(words).split(" ", 1)))
        return found


def _present_name(module: str, name: str) -> tuple[str, str]:
    """That protocol has the names of Python 2."""
    found: tuple[str, str] | None = _compat_pickle.NAME_MAPPING.get((module, name))
    return found or (_compat_pickle.IMPORT_MAPPING.get(module, module), name)


def _resolve(module: str, name: str) -> object:
    if module.split(".", 1)[0].lstrip("_") in _RUNS_CODE and f"{module}.{name}" not in _HOLDS_DATA:
        return None
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
