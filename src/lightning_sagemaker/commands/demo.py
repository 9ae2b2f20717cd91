# SPDX-License-Identifier: Apache-2.0
"""A small version of the main job: ALBERT pretraining on two simulated hosts with SMDDP, on this machine.

It trains on Python's own documentation (no download) with the files and variables of a training job, and on the same
code path as on SageMaker. It ends with a table of the measurements and of where the results are; the exit code is 1 if
the last loss is not below the limit in the table.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from lightning_sagemaker.cores import available_cores
from lightning_sagemaker.option_types import integer
from lightning_sagemaker.recipe_packages import has_packages

HELP = "pretrain a tiny ALBERT on two simulated hosts"

LOSS_LIMIT = 6.0
"""Nats per masked token. A unigram model has 6.17; 400 steps give 5.85 (Python 3.11)."""

BASELINE_STEPS = 30
"""Optimizer steps of the single-process run that the scaling efficiency is measured against."""

_TIME_LIMIT = 600
"""Seconds; each of the two runs takes less than a minute on two cores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker demo``."""
    parser.add_argument(
        "--root", type=Path, default=Path("runs/demo"), metavar="DIR", help="output folder (default: %(default)s)"
    )
    parser.add_argument(
        "--hosts", type=integer(1), default=2, metavar="N", help="simulated hosts (default: %(default)s)"
    )
    parser.add_argument(
        "--processes-per-host",
        type=integer(1),
        default=1,
        metavar="N",
        help="ranks on each host (default: %(default)s)",
    )
    parser.add_argument("--no-baseline", action="store_true", help="skip the single-process baseline")


def main(args: argparse.Namespace) -> int:
    """Run the job and print the table."""
    if not has_packages():
        return 1
    from lightning_sagemaker.simulator.cluster import run_local_cluster

    root = args.root.absolute()
    root.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    threads = max(1, available_cores() // (args.hosts * args.processes_per_host))
    environment = {"OMP_NUM_THREADS": str(threads)}
    training = [sys.executable, str(_train_script()), "--config", "tiny.yaml", "--cache_dir", str(root / "cache")]
    if not args.no_baseline:
        print(f"Single-process baseline, {BASELINE_STEPS} steps:", flush=True)
        if code := _run_alone(training, root / "one-process", environment):
            return code
        training += ["--baseline", str(root / "one-process" / "output" / "throughput.json")]
        print()
    training += ["--resume", "never"]  # a second demo in the same folder must not resume the first
    result = run_local_cluster(
        training,
        hosts=args.hosts,
        processes_per_host=args.processes_per_host,
        distribution="smddp",
        root=root / "job",
        environment=environment,
        timeout=_TIME_LIMIT,
    )
    return result.returncode or _report(result.root / "algo-1", time.monotonic() - begin)


def _train_script() -> Path:
    recipe = find_spec("lightning_sagemaker.recipes.albert_mlm")
    assert recipe is not None
    assert recipe.origin is not None
    return Path(recipe.origin).with_name("train.py")


def _run_alone(training: list[str], run: Path, environment: dict[str, str]) -> int:
    short = ["--max_steps", str(BASELINE_STEPS), "--strategy", "sagemaker", "--trainer.limit_val_batches", "0"]
    command = [*training, *short, "--run_dir", str(run)]
    return subprocess.run(command, env={**os.environ, **environment}, timeout=_TIME_LIMIT).returncode


def _report(host: Path, seconds: float) -> int:
    output = host / "output" / "data"
    metrics = json.loads((output / "metrics.json").read_text())
    with (output / "history" / "metrics.csv").open() as rows:
        first = next(row for row in csv.DictReader(rows) if row["loss"])
    passed = bool(metrics["train_loss"] < LOSS_LIMIT)
    efficiency = metrics.get("scaling_efficiency")
    table = {
        "hosts": metrics["nodes"],
        "processes": metrics["processes"],
        "strategy": f"{metrics['strategy']} ({metrics['strategy_reason']})",
        "optimizer steps": metrics["steps"],
        "first loss": f"{float(first['loss']):.4f} (to step {first['step']})",
        "last loss": f"{metrics['train_loss']:.4f} ({'below' if passed else 'NOT below'} {LOSS_LIMIT})",
        "held-out loss": f"{metrics['val_loss']:.4f} (accuracy {metrics['val_accuracy']:.1%})",
        "samples/s": f"{metrics['samples_per_second']:.0f}",
        "tokens/s": f"{metrics['tokens_per_second']:.0f}",
        "scaling efficiency": "no single-process run to compare with" if efficiency is None else f"{efficiency:.0%}",
        "total seconds": f"{seconds:.0f}",
        "model": host / "model",
        "metrics": output / "metrics.json",
        "TensorBoard": output / "tensorboard",
        "checkpoint": host / "checkpoints" / "last.ckpt",
    }
    print("\n" + "\n".join(_rows(table.items())))
    return 0 if passed else 1


def _rows(pairs: Iterable[tuple[str, object]]) -> list[str]:
    rows = [(name, str(value)) for name, value in pairs]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]
