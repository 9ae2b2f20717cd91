# SPDX-License-Identifier: Apache-2.0
"""What is measured: the cases of a sweep, and the command that each is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.recipe_table import RECIPES

_LEAST_STEPS = 12
"""Of a run: fewer have no steady state."""


@dataclass(frozen=True)
class Case:
    """One setting.

    Attributes:
        hosts: Simulated hosts.
        processes: Ranks on each.
        strategy: Of the Trainer; None leaves it to the program.
        num_workers: Loader processes of each rank; None leaves it to the program.
        batch: Samples per rank and micro-batch.
        accumulation: Micro-batches of a step.
        precision: Of the Trainer; None leaves it to the program.
        network: ``netns:RATE``; None for the machine's loopback.

    """

    hosts: int = 1
    processes: int = 1
    strategy: str | None = None
    num_workers: int | None = None
    batch: int = 8
    accumulation: int = 1
    precision: str | None = None
    network: str | None = None

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return self.hosts * self.processes

    @property
    def global_batch(self) -> int:
        """Samples of an optimizer step."""
        return self.ranks * self.batch * self.accumulation

    @property
    def name(self) -> str:
        """For people, and for files."""
        parts = [f"{self.hosts}x{self.processes}", self.strategy, f"batch{self.batch}x{self.accumulation}"]
        parts += [None if self.num_workers is None else f"workers{self.num_workers}", self.precision]
        parts.append(self.network and self.network.replace(":", "-"))
        return "-".join(part for part in parts if part)

    def steps(self, samples: int) -> int:
        """Optimizer steps for so many samples: fewer as ranks are added, as in the published tables.

        Raises:
            LaunchError: If they are too few to measure.

        """
        steps = samples // self.global_batch
        if steps < _LEAST_STEPS:
            raise LaunchError(
                f"{samples} samples are {steps} steps of {self.global_batch} ({self.name}); a steady state takes"
                f" {_LEAST_STEPS}. HINT: --samples {_LEAST_STEPS * 2 * self.global_batch}."
            )
        return steps


def sweep(base: Case, **axes: Sequence[object]) -> list[Case]:
    """All combinations of the values of the axes; those of an empty axis are the base's."""
    named = {name: values for name, values in axes.items() if values}
    found = [
        replace(base, **dict(zip(named, values, strict=True)))  # type: ignore[arg-type]
        for values in product(*named.values())
    ]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Program:
    """What is run.

    Attributes:
        target: A recipe, or a script that logs as recipes do.
        arguments: Its own.

    """

    target: str
    arguments: tuple[str, ...] = ()

    def command(self, case: Case, samples: int, run_dir: Path) -> list[str]:
        """The program of a case, as each of its ranks runs it.

        A script gets the options that a recipe gets, but only those that the case sets.
        """
        options: dict[str, object] = {
            "global_batch_size": case.global_batch,
            "accumulate_grad_batches": case.accumulation,
            "max_steps": case.steps(samples),
            "log_every_n_steps": max(1, case.steps(samples) // 100),
            "num_workers": case.num_workers,
            "strategy": case.strategy,
            "precision": case.precision,
        }
        if self.target in RECIPES:
            options |= {"run_dir": run_dir, "resume": "never"}
            if case.ranks > 1:  # Lightning's own strategies do not take them from the job
                options |= {"num_nodes": case.hosts, "devices": case.processes}
        own = [text for name, value in options.items() if value is not None for text in (f"--{name}", str(value))]
        return [sys.executable, str(self.path()), *self.arguments, *own]

    def launched(self, case: Case, samples: int, folder: Path, threads: int) -> list[str]:
        """The command that measures a case: the program, or a simulated job of it where there are several ranks."""
        own = self.command(case, samples, folder / "run")
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
        """The script.

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
