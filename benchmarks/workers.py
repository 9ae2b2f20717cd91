# SPDX-License-Identifier: Apache-2.0
"""``num_workers: auto`` against a sweep of fixed numbers, on three workloads.

    python benchmarks/workers.py
    python benchmarks/workers.py text --rounds 5

``network`` waits 12 ms for a batch, as for a far store; ``text`` tokenizes 64 texts for one; ``memory`` gathers and masks
rows that are in memory. The model's step computes for some milliseconds. Each setting trains in a process of its own, the
settings in turn, several rounds; timed is the second half of the steps, when ``auto`` has chosen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import Dataset

from lightning_sagemaker.callbacks import DataWait
from lightning_sagemaker.data.batches import TrainingBatches
from lightning_sagemaker.data.loader import batches_done
from lightning_sagemaker.recipes._common.data.data_module import RecipeData
from lightning_sagemaker.recipes._common.data.loaders import RecipeLoader
from lightning_sagemaker.recipes._common.modules.measured_workers import MeasuredWorkers

FIXED = (0, 1, 2, 4)
SAMPLES, BATCH = 1_000_000, 64


class Network(Dataset[Any]):
    """Batches that are waited for."""

    depends_on_indices_only = True

    def __getitem__(self, draws: list[int]) -> torch.Tensor:
        time.sleep(0.012)
        return torch.tensor(draws)


class Text(Dataset[Any]):
    """Batches of texts that are tokenized when they are drawn."""

    depends_on_indices_only = True

    def __init__(self) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = [f"{a}{b}{c}" for a in "bcdfgst" for b in "aeiou" for c in "lmnrs"]
        self._tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*words, "?"])}, unk_token="?"))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        random = np.random.default_rng(0)
        self._texts = [" ".join(random.choice(words, 300)) for _ in range(1000)]

    def __getitem__(self, draws: list[int]) -> torch.Tensor:
        found = [self._tokenizer.encode(self._texts[draw % len(self._texts)]).ids for draw in draws]
        return torch.tensor(found)


class Memory(Dataset[Any]):
    """Batches of rows that are masked when they are drawn."""

    depends_on_indices_only = True

    def __init__(self) -> None:
        self._rows = np.random.default_rng(0).integers(0, 30000, (50000, 128)).astype(np.uint16)

    def __getitem__(self, draws: list[int]) -> torch.Tensor:
        rows = self._rows[np.asarray(draws) % len(self._rows)].astype(np.int64)
        rows[np.random.default_rng(draws[0]).random(rows.shape) < 0.15] = 4
        return torch.from_numpy(rows)


WORKLOADS = {"network": Network, "text": Text, "memory": Memory}


class Data(RecipeData):
    """The recipes' loader over a workload; nothing is prepared."""

    def __init__(self, workload: str, workers: int | None) -> None:
        super().__init__("workers", BATCH, None, None, "auto" if workers is None else workers, None, 0)
        self._dataset = WORKLOADS[workload]()

    def prepare_data(self) -> None:
        """Nothing."""

    def setup(self, stage: str) -> None:
        """Nothing."""

    def preparation(self) -> Any:
        """Nothing."""

    def open(self, *_: Any) -> None:
        """Nothing."""

    def train_dataloader(self) -> Any:
        batches = TrainingBatches(SAMPLES, BATCH)
        options = {"num_workers": self.num_workers, "pin_memory": False}
        loader = RecipeLoader(self._dataset, batch_size=None, sampler=batches, **options)
        batches.batches_done = batches_done(loader, self.trainer)
        loader.workers_wanted = self.num_workers if self.measures_workers else None
        self._training = loader
        return loader


class Model(LightningModule):
    """A step of some milliseconds on one core."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.layers(torch.ones(128, 512)).mean() * batch.float().mean() * 1e-9

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Halves(Callback):
    """When the first and the second half of the steps ended, and the numbers of workers in the second."""

    def __init__(self, steps: int) -> None:
        self.steps, self.times, self.numbers = steps, [], set()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step in (self.steps // 2, self.steps):
            self.times.append(time.perf_counter())
        if trainer.global_step >= self.steps // 2:
            self.numbers.add(trainer.datamodule.num_workers)  # type: ignore[attr-defined]


def train(workload: str, workers: int | None, steps: int) -> dict[str, float]:
    """Steps per second of the second half, and the number of workers then.

    Raises:
        SystemExit: If the number still changed.

    """
    torch.set_num_threads(1)
    data, wait, halves = Data(workload, workers), DataWait(), Halves(steps)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu", devices=1, logger=False, callbacks=[wait, MeasuredWorkers(wait), halves], max_steps=steps,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(Model(), datamodule=data)
    if len(halves.numbers) > 1:
        sys.exit(f"auto still tried {sorted(halves.numbers)} after {steps // 2} steps. HINT: more --steps.")
    first, second = halves.times
    return {"rate": steps / 2 / (second - first), "workers": data.num_workers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="*", default=list(WORKLOADS), help=", ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(train(args.workload[0], None if args.one == "auto" else int(args.one), args.steps)))
        return
    for workload in args.workload:
        found: dict[str, list[dict[str, float]]] = {str(way): [] for way in (*FIXED, "auto")}
        for number in range(args.rounds):
            for way in list(found) if number % 2 == 0 else reversed(list(found)):
                command = [sys.executable, __file__, workload, "--one", way, "--steps", str(args.steps)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[way].append(json.loads(done.stdout.splitlines()[-1]))
        rates = {way: statistics.median(run["rate"] for run in runs) for way, runs in found.items()}
        best = max((way for way in found if way != "auto"), key=rates.__getitem__)
        chosen = ", ".join(f"{run['workers']:.0f}" for run in found["auto"])
        print(f"{workload}: steps/s " + ", ".join(f"{way} {rate:.1f}" for way, rate in rates.items()))
        print(f"  auto chose {chosen}: {rates['auto'] / rates[best]:.3f} of the best, {best} workers", flush=True)


if __name__ == "__main__":
    main()
