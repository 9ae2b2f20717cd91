# SPDX-License-Identifier: Apache-2.0
"""Step time of ``strategy="smddp"`` against ``strategy="ddp"``: gloo, two processes, alternating runs, one table.

    make bench                                      # or: python benchmarks/step_overhead.py --rounds 6
    python benchmarks/step_overhead.py --safe       # "ddp" with AutoResume and SpotInterruption against "ddp" alone

Each round launches one run of either strategy, in an order that alternates, so that both see the same machine. A step
trains a multilayer perceptron whose size is set for about 50 ms on the machine it was written on. The figure of a
strategy is the median over all its steps; the ratio of the medians is what the project promises to keep at or below 1.02.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from launching import PROCESSES, add_accelerator, torchrun  # beside this file

SAFE = "ddp-safe"
"""``ddp`` with what keeps work from being lost."""
WARMUP_STEPS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="runs of each strategy")
    parser.add_argument("--steps", type=int, default=60, help="measured steps per run")
    parser.add_argument("--width", type=int, default=1024, help="width of the model's layers")
    parser.add_argument("--batch", type=int, default=96, help="samples per process and step")
    parser.add_argument(
        "--layers", type=int, default=4, help="of the model: 100 have as many parameter tensors as a BERT-base"
    )
    parser.add_argument("--safe", action="store_true", help=f"compare {SAFE} instead of smddp")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    add_accelerator(parser)
    parser.add_argument("--worker", nargs=2, metavar=("STRATEGY", "OUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        measure(arguments.worker[0], Path(arguments.worker[1]), arguments)
    else:
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Launch the rounds and print the table."""
    other = SAFE if arguments.safe else "smddp"
    strategies = ("ddp", other)
    times: dict[str, list[float]] = {name: [] for name in strategies}
    round_medians: dict[str, list[float]] = {name: [] for name in strategies}
    for number in range(arguments.rounds):
        for strategy in strategies if number % 2 == 0 else reversed(strategies):
            steps = launch(strategy, arguments)
            times[strategy] += steps
            round_medians[strategy].append(statistics.median(steps))
            print(f"round {number + 1}/{arguments.rounds} {strategy:>8}: {1e3 * round_medians[strategy][-1]:.2f} ms")
    medians = {name: statistics.median(times[name]) for name in strategies}
    print(f"\n{'strategy':<10}{'median ms':>10}{'p10':>8}{'p90':>8}{'steps':>8}")
    for name, steps in times.items():
        deciles = statistics.quantiles(steps, n=10)
        print(f"{name:<10}{1e3 * medians[name]:>10.2f}{1e3 * deciles[0]:>8.2f}{1e3 * deciles[-1]:>8.2f}{len(steps):>8}")
    per_round = [b / a for a, b in zip(round_medians["ddp"], round_medians[other], strict=True)]
    ratio = medians[other] / medians["ddp"]
    print(f"{other} / ddp: {ratio:.4f} (per round: {', '.join(f'{r:.3f}' for r in per_round)})")
    if arguments.json:
        figures = {"median_s": medians, "ratio": ratio, "per_round": per_round, "arguments": vars(arguments)}
        arguments.json.write_text(json.dumps(figures, default=str, indent=2))


def launch(strategy: str, arguments: argparse.Namespace) -> list[float]:
    """One run of two processes; the step times in seconds of rank zero."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        sizes = [
            f"--{name}={getattr(arguments, name)}" for name in ("steps", "width", "batch", "layers", "accelerator")
        ]
        subprocess.run(
            [*torchrun(arguments.accelerator), __file__, *sizes, "--worker", strategy, str(out)],
            check=True,
            timeout=600,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return json.loads(out.read_text())


def measure(strategy: str, out: Path, arguments: argparse.Namespace) -> None:
    """Train in this process and record the wall time of each step."""
    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer
    from torch.utils.data import DataLoader, TensorDataset

    from lightning_sagemaker import AutoResume, SpotInterruption

    width, steps = arguments.width, arguments.steps + WARMUP_STEPS

    class Perceptron(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(arguments.layers)))

        def training_step(self, batch, batch_idx):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

        def train_dataloader(self):
            data = TensorDataset(torch.randn(arguments.batch * 2, width).repeat(steps, 1))
            return DataLoader(data, batch_size=arguments.batch)

    class Clock(Callback):
        """From the beginning of a step to that of the next."""

        def __init__(self) -> None:
            self.starts: list[float] = []

        def on_train_batch_start(self, *_) -> None:
            self.starts.append(time.perf_counter())

    clock = Clock()
    safe = [AutoResume(out.parent), SpotInterruption(out.parent)] if strategy == SAFE else []
    trainer = Trainer(
        strategy="ddp" if strategy == SAFE else strategy,
        accelerator=arguments.accelerator,
        devices=PROCESSES[arguments.accelerator],
        max_steps=steps,
        callbacks=[clock, *safe],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Perceptron())
    if trainer.is_global_zero:
        steps = [after - before for before, after in itertools.pairwise(clock.starts)]
        out.write_text(json.dumps(steps[WARMUP_STEPS:]))


if __name__ == "__main__":
    main()
