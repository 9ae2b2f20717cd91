# SPDX-License-Identifier: Apache-2.0
"""The cases of a sweep, and the command of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from lightning_sagemaker.bench import traced
from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.recipe_table import RECIPES

_LEAST_STEPS = 12
"""Minimum optimizer steps of a run: with fewer there is no steady state."""


@dataclass(frozen=True)
class Case:
    """The settings of one measurement.

    Attributes:
        hosts: Number of simulated hosts.
        processes: Ranks per host.
        strategy: ``Trainer(strategy=...)``; None for the program's own.
        num_workers: Loader workers per rank; None for the program's own.
        batch: Samples per rank and micro-batch.
        accumulation: Micro-batches per optimizer step.
        precision: ``Trainer(precision=...)``; None for the program's own.
        compile: Whether the model is compiled; None for the program's own setting.
        network: ``netns:RATE``; None for the machine's loopback.

    """

    hosts: int = 1
    processes: int = 1
    strategy: str | None = None
    num_workers: int | None = None
    batch: int = 8
    accumulation: int = 1
    precision: str | None = None
    compile: bool | None = None
    network: str | None = None

    @property
    def ranks(self) -> int:
        """World size."""
        return self.hosts * self.processes

    @property
    def global_batch(self) -> int:
        """Samples of an optimizer step."""
        return self.ranks * self.batch * self.accumulation

    @property
    def mode(self) -> str | None:
        """``compiled`` or ``eager``; None if the program decides."""
        return None if self.compile is None else "compiled" if self.compile else "eager"

    @property
    def name(self) -> str:
        """Name of the case for reports and folders."""
        parts = [f"{self.hosts}x{self.processes}", self.strategy, f"batch{self.batch}x{self.accumulation}"]
        parts += [None if self.num_workers is None else f"workers{self.num_workers}", self.precision]
        parts.append(self.mode)
        parts.append(self.network and self.network.replace(":", "-"))
        return "-".join(part for part in parts if part)

    def steps(self, samples: int) -> int:
        """Optimizer steps for a number of samples: fewer as ranks are added, as in the published tables.

        Raises:
            LaunchError: If there are too few steps to measure.

        """
        steps = samples // self.global_batch
        if steps < _LEAST_STEPS:
            raise LaunchError(
                f"{samples} samples are {steps} steps of {self.global_batch} ({self.name}); a steady state needs"
                f" {_LEAST_STEPS}. HINT: --samples {_LEAST_STEPS * 2 * self.global_batch}."
            )
        return steps


def sweep(base: Case, **axes: Sequence[object]) -> list[Case]:
    """All combinations of the axes' values; an empty axis has the base's value."""
    named = {name: values for name, values in axes.items() if values}
    found = [
        replace(base, **dict(zip(named, values, strict=True)))  # type: ignore[arg-type]
        for values in product(*named.values())
    ]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Program:
    """The program that is measured.

    Attributes:
        target: Name of a recipe, or path of a script that logs as recipes do.
        arguments: Command-line arguments of the target itself.

    """

    target: str
    arguments: tuple[str, ...] = ()

    def command(self, case: Case, steps: int, run_dir: Path) -> list[str]:
        """The command of each rank of a case.

        A script receives the same options as a recipe, but only those that the case sets.

        Args:
            case: The settings.
            steps: Number of optimizer steps.
            run_dir: Folder for a recipe's outputs.

        """
        options: dict[str, object] = {
            "global_batch_size": case.global_batch,
            "accumulate_grad_batches": case.accumulation,
            "max_steps": steps,
            "log_every_n_steps": max(1, steps // 100),
            "num_workers": case.num_workers,
            "strategy": case.strategy,
            "precision": case.precision,
        }
        if case.compile is not None:
            options["model.compile" if self.target in RECIPES else "compile"] = str(case.compile).lower()
        if self.target in RECIPES:
            options |= {"run_dir": run_dir, "resume": "never"}
            if case.ranks > 1:  # Lightning's own strategies do not read the number of hosts and devices from the job
                options |= {"num_nodes": case.hosts, "devices": case.processes}
        own = [text for name, value in options.items() if value is not None for text in (f"--{name}", str(value))]
        return [sys.executable, str(self.path()), *self.arguments, *own]

    def launched(self, case: Case, samples: int, folder: Path, threads: int) -> list[str]:
        """The command that measures a case: the program, or, with several ranks or a network, a simulated job.

        Args:
            case: The settings.
            samples: Number of samples to train on.
            folder: Folder for the run's outputs.
            threads: Threads per rank.

        """
        return self._job(case, self.command(case, case.steps(samples), folder / "run"), folder, threads)

    def launched_traced(self, case: Case, folder: Path, trace: Path, threads: int) -> list[str]:
        """The command that records a case's steps with torch's profiler, in a separate short run.

        Args:
            case: The settings.
            folder: Folder for the run's outputs.
            trace: Folder for each rank's breakdown.
            threads: Threads per rank.

        """
        python, *script = self.command(case, traced.STEPS, folder / "run")
        return self._job(case, [python, "-m", traced.MODULE, str(trace), *script], folder, threads)

    def _job(self, case: Case, own: list[str], folder: Path, threads: int) -> list[str]:
        if case.ranks == 1 and case.network is None:
            return own
        distribution = "smddp" if case.strategy in (None, "sagemaker", "smddp") else "torch_distributed"
        local = [sys.executable, "-m", "lightning_sagemaker.cli", "local", "--hosts", str(case.hosts)]
        local += ["--processes-per-host", str(case.processes), "--distribution", distribution]
        local += ["--root", str(folder / "job"), "--env", f"OMP_NUM_THREADS={threads}"]
        if case.network is not None:
            local += ["--network", case.network]
        return [*local, "--", *own]

    def path(self) -> Path:
        """Path of the script.

        Raises:
            LaunchError: If the target is neither a recipe nor a file.

        """
        if self.target in RECIPES:
            spec = find_spec(RECIPES[self.target].module("train"))
            if spec is None or spec.origin is None:
                raise LaunchError(f"the recipe {self.target!r} is not installed. HINT: pip install --upgrade .")
            return Path(spec.origin)
        path = Path(self.target).absolute()
        if not path.is_file():
            raise LaunchError(
                f"{self.target!r} is neither a recipe nor a script. HINT: {suggestion(self.target, RECIPES)}"
            )
        return path
