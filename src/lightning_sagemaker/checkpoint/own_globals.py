# SPDX-License-Identifier: Apache-2.0
"""Allows the classes of a script's own hyperparameters and callbacks in its checkpoints.

A checkpoint is loaded with ``weights_only``: write access to its folder does not allow running code. This refuses objects in
hyperparameters, which many libraries have (a loss, an encoder fitted to the data), even if the script has just created
the same ones. So exactly the classes of the script's own objects are allowed in the checkpoint.
"""

from __future__ import annotations

import _compat_pickle
import contextlib
import functools
import io
import operator
import os
import pickle
import pickletools
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from enum import EnumMeta
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch

from lightning_sagemaker._compat.safe_names import safe_names

if TYPE_CHECKING:
    from lightning_sagemaker._types import PathLike, StateDict


_Method = tuple[type, str]
_RUNS_CODE = frozenset(
    """
    asyncio builtins code codeop ctypes functools importlib io marshal multiprocessing nt operator os pickle platform posix
    pty runpy shutil signal socket subprocess sys tempfile threading timeit types webbrowser
    """.split()  # noqa: SIM905
)
"""Modules whose functions may call or access their arguments, and their C modules, such as ``_functools``."""
_DATA = """
    Ellipsis NotImplemented bool bytearray bytes complex dict float frozenset int list object range set slice str tuple
    """.split()  # noqa: SIM905
_HOLDS_DATA = frozenset([*(f"builtins.{name}" for name in _DATA), "functools.partial", "types.SimpleNamespace"])
"""Exceptions in these modules: unpickling a ``partial`` does not call it."""
_READ = 16 * 2**20
"""Maximum bytes of a pickled object that are searched for names."""


def own_globals(values: Iterable[object]) -> dict[str, object]:
    """Classes and functions that a pickle of these values refers to, except those that run code.

    Args:
        values: Hyperparameters and states, as in a checkpoint. Values that cannot be pickled are skipped.

    Returns:
        Name in the file -> class or function.

    """
    found: StateDict = {}
    for module, name in {one for value in values for one in _Names().of(value)}:
        one = _resolve(module, name)
        if one is not None:
            found[f"{module}.{name}"] = one
    return found


def own_methods(values: Iterable[object]) -> Set[_Method]:
    """Methods that these values refer to, such as a loss whose attribute is one of its own, by class and name."""
    found = set[_Method]()
    for value in values:
        names = _Names()
        names.of(value)
        found |= names.methods
    return found


def refused_names(value: object) -> set[str]:
    """Names that ``torch.load(weights_only=True)`` would refuse in an object; its class, if it cannot be pickled."""
    names = _Names()
    found = {f"{module}.{name}" for module, name in names.of(value)} - safe_names().keys()
    return found if names.is_written else found | {f"{type(value).__module__}.{type(value).__qualname__}"}


@contextlib.contextmanager
def may_hold(values: Callable[[], Iterable[object]]) -> Iterator[None]:
    """Context in which ``torch.load(weights_only=True)`` loads objects of these values' classes.

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
        held = [*values()]
        own = {"weights_only": False, "pickle_module": _pickle_of(own_globals(held), own_methods(held))}
        return load(file, *arguments, **{**options, **own})

    vars(torch)["load"] = read  # Lightning calls it with fixed arguments, and has no hook for reading
    try:
        yield
    finally:
        vars(torch)["load"] = load


def _pickle_of(names: Mapping[str, object], methods: Set[_Method]) -> types.ModuleType:
    """A ``pickle`` module for ``torch.load`` that allows only these names and torch's own, and leaves these methods out."""
    allowed = {**safe_names(), **names, **_INSTEAD, "builtins.getattr": functools.partial(_member, methods)}

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            path = ".".join(_present_name(module, name))
            if path not in allowed:
                raise pickle.UnpicklingError(f"weights_only: {path} is among neither hyperparameters nor callbacks")
            return allowed[path]

    found = types.ModuleType("pickle")
    vars(found).update(Unpickler=Unpickler, load=lambda file, **options: Unpickler(file, **options).load())
    return found


def _member(methods: Set[_Method], kind: object, name: str) -> object:
    """The member of an ``Enum``, as early versions of Python 3.11 pickle it; attributes of other objects are refused.

    Callbacks among hyperparameters refer to the module's ``log``, which Lightning sets again, and so to the module, whose
    ``forward`` Lightning has set under DDP: not needed. Nor are ``methods`` that an object has in attributes.
    """
    if isinstance(kind, torch.nn.Module) and name in ("log", "log_dict", "forward"):
        return None
    if (kind if isinstance(kind, type) else type(kind), name) in methods:
        return None
    if isinstance(kind, EnumMeta) and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError(
        f"weights_only: getattr of {type(kind).__name__} is among neither hyperparameters nor callbacks"
    )


def _parametrized(kind: object, parameters: object) -> object:
    """A type such as ``Dict[str, Any]``, as configurations keep those of their values; other objects' items are refused."""
    if type(kind).__module__ == "typing":
        return operator.getitem(kind, parameters)  # type: ignore[call-overload]
    raise pickle.UnpicklingError(
        f"weights_only: an item of {type(kind).__name__} is among neither hyperparameters nor callbacks"
    )


def _type_of(value: object) -> object:
    """The types without a name of their own: those of ``None`` and of ``...``."""
    if value is None or value is ...:
        return type(value)
    raise pickle.UnpicklingError("weights_only: builtins.type is among neither hyperparameters nor callbacks")


_INSTEAD: dict[str, object] = {"builtins.type": _type_of}
_INSTEAD |= dict.fromkeys(("operator.getitem", "_operator.getitem"), _parametrized)
"""What is called in place of functions that could run code, and that pickles of plain things contain."""


class _Names(pickle.Pickler):
    """Pickles an object without tensor data, as :func:`torch.save` would, and records the globals in it."""

    def __init__(self) -> None:
        self._text = io.BytesIO()
        self.methods: set[_Method] = set()
        self.is_written = True
        super().__init__(self, protocol=2)

    def write(self, text: bytes) -> int:
        if self._text.tell() > _READ:
            raise OverflowError
        return self._text.write(text)

    def persistent_id(self, value: object) -> str | None:
        return "tensor" if isinstance(value, (torch.Tensor, torch.UntypedStorage)) else None

    def reducer_override(self, value: object) -> str | tuple[Any, ...]:
        if isinstance(value, types.MethodType):
            own = value.__self__
            self.methods.add((own if isinstance(own, type) else type(own), value.__name__))
        if type(value) is np.ndarray and value.dtype != object:
            empty: str | tuple[Any, ...] = np.empty(0, value.dtype).__reduce__()
            return empty
        return NotImplemented  # type: ignore[no-any-return]

    def of(self, value: object) -> set[tuple[str, str]]:
        """The names in an object, up to the first part that cannot be pickled."""
        found = set[tuple[str, str]]()
        try:
            self.dump(value)
        except Exception as error:  # an object may raise anything; Lightning omits such hyperparameters
            self.is_written = isinstance(error, OverflowError)
        with contextlib.suppress(Exception):  # the pickle may be truncated
            for operation, words, _ in pickletools.genops(self._text.getvalue()):
                if operation.name == "GLOBAL":
                    found.add(_present_name(*str(words).split(" ", 1)))
        return found


def _present_name(module: str, name: str) -> tuple[str, str]:
    """The name in Python 3, as that pickle protocol has names of Python 2."""
    found: tuple[str, str] | None = _compat_pickle.NAME_MAPPING.get((module, name))
    return found or (_compat_pickle.IMPORT_MAPPING.get(module, module), name)


def _resolve(module: str, name: str) -> object:
    if module.split(".", 1)[0].lstrip("_") in _RUNS_CODE and f"{module}.{name}" not in _HOLDS_DATA:
        return None
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
