# SPDX-License-Identifier: Apache-2.0
"""Modules that a process has imported, and that a process forked from it gets when it imports them.

Until then they are not in ``sys.modules``: a program that looks there (this package does, to tell ``lightning`` from
``pytorch_lightning``) finds what it would find in a new process, and import hooks run. Importing also reads environment
variables. Their values are recorded; if one has changed when the program imports, there is a warning (torch), or the
packages are imported again (all others).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn

from lightning_sagemaker.simulator.preload import forked_program

RANK_NAMES = frozenset(("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"))
"""Variables that differ between ranks and are read by the imports below; :func:`_begin` sets what depends on them."""


@dataclass
class Group:
    """Packages that are imported together.

    Attributes:
        name: Name of the group.
        packages: Packages of which importing any module hands over the entire group.
        imports: Modules that are imported to load the group; import hooks run for them.
        needs: Names of groups that importing this group loads, also in a new process.
        modules: Name -> module that the import of this group has loaded and that is to be handed over.
        read: Environment variable -> value that the import read.
        set: Environment variable -> value that the import set.
        filters: Warning filters that the import added.

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
    """The packages that most training programs import; importing them starts no thread and initializes no GPU."""
    return (
        Group("torch", ("torch", "torchgen"), ("torch", "torch.distributed.launcher.api")),
        Group("transformers", ("transformers", "huggingface_hub"), ("transformers.modeling_utils",), ("torch",)),
        Group("torchmetrics", ("torchmetrics",), ("torchmetrics",), ("torch", "transformers")),
        Group("lightning", ("lightning",), ("lightning.pytorch",), ("torch", "transformers", "torchmetrics")),
    )


def load(group: Group, hidden: frozenset[str]) -> bool:
    """Import a group, and record its modules and side effects; the modules stay in ``sys.modules``.

    Args:
        group: The group, whose fields are filled in.
        hidden: Packages whose modules are to be handed over.

    Returns:
        Whether the packages of the group are installed.

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
    """Record each variable that is read by name, but not a read of all variables, as for a child process."""
    kind, in_bulk = type(os.environ), Counter[str]()
    get, iterate = kind.__getitem__, kind.__iter__

    def note(self: Any, name: str) -> str:
        if in_bulk[name]:
            in_bulk[name] -= 1
        else:
            known = os.fsdecode(name)  # subprocess asks for b"PATH", os.environb for any
            read.setdefault(known, _value(known))
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
    """Remove the rank that Lightning and torchmetrics have cached when they were imported."""
    for name in ("lightning.fabric.utilities.rank_zero", "torchmetrics.utilities.prints"):
        if name in modules:
            vars(modules[name].rank_zero_only).pop("rank", None)


def _begin(name: str, module: ModuleType) -> None:
    """Set what importing these modules determines for each process: its rank, and a new seed."""
    if name == "torch":
        module.default_generator.seed()
    elif name == "lightning.fabric.utilities.rank_zero" and not hasattr(module.rank_zero_only, "rank"):
        module.rank_zero_only.rank = module._get_rank() or 0
    elif name == "torchmetrics.utilities.prints":
        module.rank_zero_only.rank = int(os.environ.get("LOCAL_RANK", 0))


class Handover(importlib.abc.MetaPathFinder):
    """Finds modules of groups that the parent process has loaded.

    Args:
        loaded: The loaded groups.
        warn: Called with a message if a variable that torch reads was set too late.

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
        """Do not hand over ``name``, so that it is imported normally."""
        for group in self._waiting.values():
            group.modules.pop(name, None)

    def hand_over(self, group: Group, name: str) -> None:
        """Put the modules of ``group`` into ``sys.modules``, because ``name`` is imported."""
        package = name.partition(".")[0]
        if package not in group.packages:  # a module of another package that this import loaded
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
        """Check once whether variables have changed since the import; only torch cannot be loaded twice in a process."""
        is_torch = group.name == "torch"
        alike = [other for other in self._waiting.values() if (other.name == "torch") == is_torch]
        read = {name: value for other in alike for name, value in other.read.items()}
        changed = sorted(name for name in read.keys() - RANK_NAMES if os.environ.get(name) != read[name])
        for other in alike:
            other.read.clear()
            if changed and not is_torch:  # modules of torch that the import loaded register operators, so they are kept
                other.modules = {n: module for n, module in other.modules.items() if n.startswith("torch.")}
        if changed and is_torch:
            self._warn(
                f"{', '.join(changed)}: set after torch was imported for all processes. HINT: give --no-preload."
            )


def run_program(request: Mapping[str, Any], loaded: Sequence[Group], warn: Callable[[str], None]) -> NoReturn:
    """Run the program of a request in this process, a fork, which gets the loaded packages.

    Args:
        request: ``command``, ``cwd`` and ``environment`` of the program.
        loaded: Groups of packages that the parent has loaded.
        warn: As for :class:`Handover`.

    """
    command = request["command"]
    forked_program.settle(command, request["cwd"], request["environment"])
    handover = Handover(loaded, warn)
    if command[1] == "-m":
        handover.forget(command[2])
    sys.meta_path.insert(0, handover)
    forked_program.run(command[1:])


def _spec(name: str, module: ModuleType, finder: Handover, group: Group) -> importlib.machinery.ModuleSpec:
    own = module.__spec__
    assert own is not None
    spec = importlib.machinery.ModuleSpec(name, _Loader(module, finder, group), origin=own.origin)
    spec.submodule_search_locations = own.submodule_search_locations
    spec.has_location = own.has_location
    spec.cached = own.cached
    return spec


class _Loader(importlib.abc.Loader):
    """Loads a module that exists, and hands over its group."""

    def __init__(self, module: ModuleType, finder: Handover, group: Group) -> None:
        self._module, self._finder, self._group = module, finder, group
        self._own = module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the existing module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Hand over all modules that the import would have loaded."""
        module.__spec__ = self._own
        _begin(module.__name__, module)
        self._finder.hand_over(self._group, module.__name__)
