# SPDX-License-Identifier: Apache-2.0
"""Step time of ``"smddp_fsdp"`` against stock FSDP2, and what saving beside the training costs the step that saves.

    python benchmarks/fsdp.py                     # step time: Lightning's ModelParallelStrategy with fully_shard
    python benchmarks/fsdp.py --saving            # async_checkpoint=True and MemoryCheckpoint against saving at once,
                                                  # stock's and ours

Two processes, gloo, runs in an order that alternates, one table. The figure of a side is the median over all its steps, or
over all its saves, of the slower process. The wait of the next update for the copies of optimizer states counts as saving.
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

WARMUP = 10
SIZES = ("steps", "width", "blocks", "batch")
SIDES = {"step": ("stock", "smddp_fsdp"), "saving": ("stock, at once", "at once", "in memory", "beside")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saving", action="store_true", help="compare saves instead of steps")
    parser.add_argument("--rounds", type=int, default=6, help="runs of each side")
    parser.add_argument("--steps", type=int, default=60, help="measured steps per run; a tenth of them save")
    parser.add_argument("--width", type=int, default=1024, help="width of the model's layers")
    parser.add_argument("--blocks", type=int, default=4, help="layers of the model")
    parser.add_argument("--batch", type=int, default=96, help="samples per process and step")
    add_accelerator(parser)
    parser.add_argument("--worker", nargs=2, metavar=("SIDE", "OUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        measure(arguments.worker[0], Path(arguments.worker[1]), arguments)
    else:
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Launch the rounds and print the table."""
    sides = SIDES["saving" if arguments.saving else "step"]
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(arguments.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            found = launch(side, arguments)
            times[side] += found
            print(
                f"round {number + 1}/{arguments.rounds} {side:>14}: {1e3 * statistics.median(found):.2f} ms", flush=True
            )
    medians = {name: statistics.median(found) for name, found in times.items()}
    print(f"{'side':<16}{'median ms':>11}{'p10':>9}{'p90':>9}{'n':>6}")
    for name, found in times.items():
        deciles = statistics.quantiles(found, n=10)
        print(f"{name:<16}{1e3 * medians[name]:>11.2f}{1e3 * deciles[0]:>9.2f}{1e3 * deciles[-1]:>9.2f}{len(found):>6}")
    ours, others = (sides[2:], sides[:2]) if arguments.saving else (sides[1:], sides[:1])
    for own, other in itertools.product(ours, others):
        print(f"{own} / {other}: {medians[own] / medians[other]:.4f}")


def launch(side: str, arguments: argparse.Namespace) -> list[float]:
    """One run of two processes; for each step or save, the seconds of the slower one."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = [f"--{name}={getattr(arguments, name)}" for name in (*SIZES, "accelerator")]
        subprocess.run(
            [*torchrun(arguments.accelerator), __file__, *sizes, "--worker", side, folder],
            check=True,
            timeout=900,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ranks = [json.loads(path.read_text()) for path in Path(folder).glob("times-*.json")]
        return [max(both) for both in zip(*ranks, strict=True)]


def measure(side: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Train in this process and record the wall time of each step, or of each save."""
    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard
    from torch.utils.data import DataLoader, TensorDataset

    from lightning_sagemaker import MemoryCheckpoint, SMDDPFSDPStrategy

    saving, width = side in SIDES["saving"], arguments.width
    steps = arguments.steps + WARMUP

    class Perceptron(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(arguments.blocks)))

        def configure_model(self):
            if side.startswith("stock"):
                for unit in [*self.net, self.net]:
                    fully_shard(unit, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, batch_idx):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return (
                torch.optim.Adam(self.parameters(), lr=1e-5) if saving else torch.optim.SGD(self.parameters(), lr=1e-3)
            )

        def train_dataloader(self):
            data = TensorDataset(torch.randn(arguments.batch * 2, width).repeat(steps, 1))
            return DataLoader(data, batch_size=arguments.batch)

    class Clock(Callback):
        """From the beginning of a step to that of the next, or around a save, which takes turns with ten steps."""

        def __init__(self) -> None:
            self.starts: list[float] = []
            self.saves: list[float] = []

        def on_train_batch_start(self, *_) -> None:
            self.starts.append(time.perf_counter())

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
            if saving and side != "in memory" and (batch_idx + 1) % 10 == 0:
                if side == "beside":
                    trainer.strategy.finish_saving()  # the last one, which a real run has long written
                    if self.saves:
                        self.saves[-1] += trainer.strategy.update_wait_seconds
                trainer.strategy.barrier()
                if trainer.strategy.root_device.type == "cuda":
                    torch.cuda.synchronize()  # steps that are under way are not the save's
                begin = time.perf_counter()
                trainer.save_checkpoint(folder / "last.ckpt")
                self.saves.append(time.perf_counter() - begin)

    class TimedCopies(MemoryCheckpoint):
        def _begin(self, trainer, memory) -> None:
            if clock.saves:
                clock.saves[-1] += self._deferred.waited
            trainer.strategy.barrier()
            begin = time.perf_counter()
            super()._begin(trainer, memory)
            clock.saves.append(time.perf_counter() - begin)

    clock = Clock()
    strategy = {
        "stock": lambda: ModelParallelStrategy(PROCESSES[arguments.accelerator], 1),
        "stock, at once": lambda: ModelParallelStrategy(
            PROCESSES[arguments.accelerator], 1, save_distributed_checkpoint=True
        ),
        "smddp_fsdp": SMDDPFSDPStrategy,
        "at once": lambda: SMDDPFSDPStrategy(save_distributed_checkpoint=True),
        "in memory": SMDDPFSDPStrategy,
        "beside": lambda: SMDDPFSDPStrategy(async_checkpoint=True),
    }[side]()
    trainer = Trainer(
        strategy=strategy,
        accelerator=arguments.accelerator,
        devices=PROCESSES[arguments.accelerator],
        max_steps=steps,
        callbacks=[clock, *([TimedCopies(10)] if side == "in memory" else [])],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Perceptron())
    times = [after - before for before, after in itertools.pairwise(clock.starts)][WARMUP:]
    (folder / f"times-{trainer.global_rank}.json").write_text(json.dumps(clock.saves[1:-1] if saving else times))


if __name__ == "__main__":
    main()
