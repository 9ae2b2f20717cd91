# SPDX-License-Identifier: Apache-2.0
"""Makes imports of AWS's libraries resolve to the shims where those libraries are absent. Does not import torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

ROOT = "smdistributed"
LIBRARY = f"{ROOT}.dataparallel"
VERSION_2 = "torch.sagemaker"
LIBRARIES = (LIBRARY, f"{ROOT}.modelparallel", VERSION_2)
"""The libraries that the shims mirror; ``smdistributed`` itself is a folder that AWS's libraries share."""

_SHIMS = {ROOT: f"{__package__}", VERSION_2: "lightning_sagemaker.torch_sagemaker"}
"""AWS's package -> package of its shim."""


class _Alias(Loader):
    """Loads a module of the shim under AWS's name: the same module object, so that its state exists once."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the import system has just put the alias's there


class _Finder(MetaPathFinder):
    """Finds the modules in ``served`` and their submodules."""

    def __init__(self, served: Sequence[str]) -> None:
        self._served = tuple(served)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in self._served):
            return None
        name = next(shim + fullname[len(aws) :] for aws, shim in _SHIMS.items() if f"{fullname}.".startswith(f"{aws}."))
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        return ModuleSpec(fullname, _Alias(name), is_package=found.submodule_search_locations is not None)


def aws_installed() -> bool:
    """Whether AWS's own SMDDP can be imported here."""
    loaded = sys.modules.get(LIBRARY)
    if loaded is not None:
        return loaded.__name__ == LIBRARY
    return _find_beside(LIBRARY) is not None


def install() -> bool:
    """Make ``import smdistributed...`` and ``import torch.sagemaker`` find the shims where AWS's are absent. Idempotent.

    Each library is served by itself: AWS's images have had each without the others.

    Returns:
        Whether ``smdistributed.dataparallel`` now is the shim.

    """
    is_shim = not aws_installed()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        missing = [library for library in LIBRARIES if _find_beside(library) is None]
        served = [*missing, ROOT] if _find_beside(ROOT) is None else missing
        # First, because the folder of the parent package holds the real files, which would be loaded a second time.
        sys.meta_path.insert(0, _Finder(served))
        importlib.invalidate_caches()
    return is_shim


def uninstall() -> None:
    """Undo :func:`install`, and remove AWS's names from ``sys.modules``."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    if "torch" in sys.modules:
        vars(sys.modules["torch"]).pop("sagemaker", None)
    for name, module in list(sys.modules.items()):
        if any(f"{name}.".startswith(f"{aws}.") for aws in _SHIMS) and module.__name__ != name:
            del sys.modules[name]


def _find_beside(name: str) -> ModuleSpec | None:
    """The spec of ``name`` in the folders of ``sys.path``, ignoring other finders."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        return PathFinder.find_spec(name)
    loaded = sys.modules.get(parent)
    found = _find_beside(parent)
    path = getattr(loaded, "__path__", None) or (found and found.submodule_search_locations)
    return PathFinder.find_spec(name, list(path)) if path else None
