# SPDX-License-Identifier: Apache-2.0
"""Modules that one process has imported and another, forked from it, gets when it imports them itself.

Until then they are in no ``sys.modules``: a program that asks what is loaded (this package does, to tell ``lightning``
from ``pytorch_lightning``) sees what it would see in a process of its own, and what waits for an import hears of it. An
import also reads variables; the names are recorded, and where one has another value by the time the program imports, it
is said (torch) or re-imported (everything else).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

RANK_NAMES = frozenset(("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"))
"""Variables that differ from rank to rank and are read by the imports below: :func:`_begin` sees to what they set."""


@dataclass
class Group:
    """Packages that are imported together.

    Attributes:
        name: Name of the group.
        packages: Importing any module of these hands over the entire group.
        imports: What is imported; what waits for the import of one of these hears of it.
        needs: Groups that are loaded by it, in a process of its own too.
        modules: Name -> module, of those packages that are handed over and that were not loaded before.
        read: Variable -> the value that the import found.
        set: Variable -> the value that the import gave it.
        filters: Filters of warnings that it added.

    """

    name: str
    packages: tuple[str, ...]
    imports: tuple[str, ...]
    needs: tuple[str, ...] = ()
    modules: dict[str, ModuleType] = field(default_factory=dict)
    read: dict[str, str | None] = field(default_factory=dict)
    set: dict[str, str] = field(default_factory=dict)
    filters: list[object] = field(default_factory=list)


def groups() -> tuple[Group, ...]:
    """What most training programs import, none of which starts a thread or looks for a GPU when it is imported."""
    return (
        Group("torch", ("torch", "torchgen"), ("torch", "torch.distributed.launcher.api")),
        Group("transformers", ("transformers", "huggingface_hub"), ("transformers.modeling_utils",), ("torch",)),
        Group("torchmetrics", ("torchmetrics",), ("torchmetrics",), ("torch", "transformers")),
        Group("lightning", ("lightning",), ("lightning.pytorch",), ("torch", "transformers", "torchmetrics")),
    )


def load(group: Group, hidden: frozenset[str]) -> bool:
    """Import a group, and take its modules out of ``sys.modules`` again when :func:`hide` says so.

    Args:
        group: Filled in here.
        hidden: Packages whose modules are to be handed over.

    Returns:
        Whether it is installed.

    """
    before, environment, filters = set(sys.modules), dict(os.environ), list(warnings.filters)
    with _reads_recorded(group.read):
        try:
            for name in group.imports:
                importlib.import_module(name)
        except ImportError:
            return False
    group.modules = {
        name: module
        for name, module in sys.modules.items()
        if name not in before and name.partition(".")[0] in hidden and module is not None
    }
    group.set = {name: value for name, value in os.environ.items() if environment.get(name) != value}
    group.filters = [entry for entry in warnings.filters if entry not in filters]
    return True


@contextmanager
def _reads_recorded(read: dict[str, str | None]) -> Iterator[None]:
    """Record each variable that is read by name; reading all of them, as for a child process, does not count."""
    kind, in_bulk = type(os.environ), Counter[str]()
    get, iterate = kind.__getitem__, kind.__iter__

    def note(self: Any, name: str) -> str:
        if in_bulk[name]:
            in_bulk[name] -= 1
        else:
            read.setdefault(name, _value(name))
        return get(self, name)

    def note_bulk(self: Any) -> Iterator[str]:
        names = list(iterate(self))
        in_bulk.update(names)
        return iter(names)

    def _value(name: str) -> str | None:
        try:
            return get(os.environ, name)
        except (KeyError, TypeError):
            return None

    kind.__getitem__, kind.__iter__ = note, note_bulk  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.__getitem__, kind.__iter__ = get, iterate  # type: ignore[method-assign]


def forget_rank(modules: dict[str, ModuleType]) -> None:
    """Undo what Lightning and torchmetrics conclude from the rank's variables when they are imported."""
    for name in ("lightning.fabric.utilities.rank_zero", "torchmetrics.utilities.prints"):
        if name in modules:
            vars(modules[name].rank_zero_only).pop("rank", None)


def _begin(name: str, module: ModuleType) -> None:
    """What the import of these modules finds out for each process: its rank, and a seed of its own."""
    if name == "torch":
        module.default_generator.seed()
    elif name == "lightning.fabric.utilities.rank_zero" and not hasattr(module.rank_zero_only, "rank"):
        module.rank_zero_only.rank = module._get_rank() or 0
    elif name == "torchmetrics.utilities.prints":
        module.rank_zero_only.rank = int(os.environ.get("LOCAL_RANK", 0))


class Handover(importlib.abc.MetaPathFinder):
    """Finds the modules of groups that another process has loaded.

    Args:
        loaded: The groups.
        warn: Called with a sentence when a variable was set too late for torch.

    """

    def __init__(self, loaded: Sequence[Group], warn: Callable[[str], None]) -> None:
        self._waiting = {group.name: group for group in loaded}
        self._warn = warn

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec whose loader hands the group over; None for any other module."""
        for group in list(self._waiting.values()):
            if fullname in group.modules:
                self._heed_variables(group)
            if fullname in group.modules:
                return _spec(fullname, group.modules[fullname], self, group)
        return None

    def forget(self, name: str) -> None:
        """Have ``name`` imported as ever."""
        for group in self._waiting.values():
            group.modules.pop(name, None)

    def hand_over(self, group: Group, name: str) -> None:
        """Put the modules of ``group`` in their places, because ``name`` is imported."""
        package = name.partition(".")[0]
        if package not in group.packages:  # a later part of another package
            self._put(group, {n: m for n, m in group.modules.items() if n.partition(".")[0] == package})
            return
        for needed in group.needs:
            if needed in self._waiting:
                importlib.import_module(self._waiting[needed].imports[0])
        self._put(group, {n: m for n, m in group.modules.items() if n not in group.imports})
        for variable, value in group.set.items():
            os.environ.setdefault(variable, value)
        warnings.filters[:0], group.filters = group.filters, []  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        for waited_for in group.imports:
            importlib.import_module(waited_for)
        self._waiting.pop(group.name, None)

    def _put(self, group: Group, modules: dict[str, ModuleType]) -> None:
        for name, module in modules.items():
            sys.modules.setdefault(name, module)
            _begin(name, module)
            if name not in group.imports:
                group.modules.pop(name, None)

    def _heed_variables(self, group: Group) -> None:
        """Look, once, whether an import would find what it found; torch alone cannot be loaded twice in a process."""
        is_torch = group.name == "torch"
        alike = [other for other in self._waiting.values() if (other.name == "torch") == is_torch]
        read = {name: value for other in alike for name, value in other.read.items()}
        changed = sorted(name for name in read.keys() - RANK_NAMES if os.environ.get(name) != read[name])
        for other in alike:
            other.read.clear()
            if changed and not is_torch:  # parts of torch that came with it register operators, and stay
                other.modules = {n: module for n, module in other.modules.items() if n.startswith("torch.")}
        if changed and is_torch:
            self._warn(
                f"{', '.join(changed)}: set after torch was imported for all processes. HINT: give --no-preload."
            )


def _spec(name: str, module: ModuleType, finder: Handover, group: Group) -> importlib.machinery.ModuleSpec:
    own = module.__spec__
    assert own is not None
    spec = importlib.machinery.ModuleSpec(name, _Loader(module, finder, group), origin=own.origin)
    spec.submodule_search_locations = own.submodule_search_locations
    spec.has_location = own.has_location
    spec.cached = own.cached
    return spec


class _Loader(importlib.abc.Loader):
    """Loads a module that exists."""

    def __init__(self, module: ModuleType, finder: Handover, group: Group) -> None:
        self._module, self._finder, self._group = module, finder, group
        self._own = module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module itself."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Everything that the import would have brought, too."""
        module.__spec__ = self._own
        _begin(module.__name__, module)
        self._finder.hand_over(self._group, module.__name__)
