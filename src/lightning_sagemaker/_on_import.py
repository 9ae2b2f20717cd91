# SPDX-License-Identifier: Apache-2.0
"""Registers the strategies when Lightning is imported, so that importing this package stays cheap.

Lightning has no entry point for strategies, and loading it takes seconds which ``lightning-sagemaker --help`` must not
cost. So: if Lightning is loaded already, register now; otherwise when the script loads it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_TRIGGERS = ("lightning.pytorch", "pytorch_lightning")
"""Once one of these has been executed, its strategy registries and base classes are complete."""

_BRIDGE = "lightning_sagemaker._lightning"
"""Loads one of them itself when a script imports from this package first; it must then be complete before anything else."""


def register_with_lightning() -> None:
    """Register the strategies now if Lightning is loaded, else as soon as it is. Idempotent."""
    loaded = [_is_loaded(name) for name in _TRIGGERS]
    if any(loaded):
        _register()
    if not all(loaded) and not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def _is_loaded(name: str) -> bool:
    return name in sys.modules and not _is_loading(name)


def _is_loading(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


def _register(executed: str | None = None) -> None:
    if executed != _BRIDGE and _is_loading(_BRIDGE):
        return  # the bridge has asked for Lightning: register when it is done
    from lightning_sagemaker import registry

    registry.register()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it asks the other finders, and has their loader call :func:`_register` when it is done."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in (*_TRIGGERS, _BRIDGE):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _call_after(spec.loader)
                return spec
        return None


def _call_after(loader: importlib.abc.Loader) -> None:
    execute = loader.exec_module

    def execute_then_register(module: ModuleType) -> None:
        execute(module)
        _register(module.__name__)

    loader.exec_module = execute_then_register  # type: ignore[method-assign]
