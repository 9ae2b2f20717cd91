# SPDX-License-Identifier: Apache-2.0
"""Run a script with a trace of its steps: ``python -m lightning_sagemaker.bench.traced FOLDER SCRIPT [ARGUMENTS]``.

The script is not changed: the Trainer of the Lightning package that it imports gets an additional callback in ``fit``.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_P = ParamSpec("_P")
_T = TypeVar("_T")

MODULE = __name__
WARM_UP = 4
"""Optimizer steps before anything is timed."""
TIMED = 12
"""Steps that are timed with the profiler off."""
PREPARING = 2
"""Warm-up steps of the profiler, which are discarded: its first step is slow."""
ACTIVE = 8
"""Recorded steps."""
STEPS = WARM_UP + TIMED + PREPARING + ACTIVE + 1
"""Optimizer steps of a traced run."""
_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def main() -> None:
    """Run the script as ``__main__``."""
    folder, script, *rest = sys.argv[1:]
    sys.meta_path.insert(0, _TraceTrainers(Path(folder)))
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).resolve().parent)  # as python itself does for a script
    runpy.run_path(script, run_name="__main__")


class _TraceTrainers(importlib.abc.MetaPathFinder):
    """Changes ``Trainer.fit`` right after the module that defines it is executed.

    Args:
        folder: Where breakdowns are written.

    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """For a Trainer's module the spec of the other finders, with a loader that changes ``Trainer.fit``."""
        if fullname not in _TRAINERS:
            return None
        spec = next(filter(None, (one.find_spec(fullname, path, target) for one in sys.meta_path if one is not self)))
        if spec.loader is not None:
            execute = spec.loader.exec_module

            def then_trace(module: ModuleType) -> None:
                execute(module)
                module.Trainer.fit = _traced(module.Trainer.fit, self._folder)

            spec.loader.exec_module = then_trace  # type: ignore[method-assign]
        return spec


def _traced(fit: Callable[_P, _T], folder: Path) -> Callable[_P, _T]:
    @functools.wraps(fit)
    def fit_traced(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
        from lightning_sagemaker.bench.step_trace import StepTrace

        trainer: Trainer = arguments[0]  # type: ignore[assignment]
        StepTrace(folder).attach(trainer)
        return fit(*arguments, **keywords)

    return fit_traced


if __name__ == "__main__":
    main()
