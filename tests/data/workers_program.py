# SPDX-License-Identifier: Apache-2.0
"""Training with worker processes, to be stopped from outside.

``workers_program.py FOLDER OPTIONS`` (JSON: ``workers``, ``context``, ``persistent``, ``mended``, ``strategy``,
``hangs_at``, ``stops_at``, ``exits_at``) writes to FOLDER: ``pids`` of the workers, ``step`` when training is under way,
``stopped`` when ``fit`` was left.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, Dataset

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.data.workers import end_quickly, ignore_stop_signals, signals_held

warnings.filterwarnings("ignore")
FOLDER, OPTIONS = Path(sys.argv[1]), json.loads(sys.argv[2])


class Samples(Dataset):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index):
        time.sleep(10 if index == OPTIONS.get("hangs_at") else 0.01)
        return torch.ones(4)


def ignore(worker: int) -> None:
    ignore_stop_signals()


class Loader(DataLoader):
    """With workers that end when they should."""

    def __iter__(self):
        with signals_held(self.multiprocessing_context):
            iterator = super().__iter__()
        if OPTIONS["mended"]:
            end_quickly(iterator)
        if self.num_workers:
            (FOLDER / "pids").write_text(json.dumps([worker.pid for worker in iterator._workers]))
        return iterator


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Tell(Callback):
    def on_train_batch_end(self, trainer, *_) -> None:
        if trainer.global_step == OPTIONS.get("exits_at"):
            raise SystemExit(143)
        if trainer.global_step == 3 and trainer.is_global_zero:
            (FOLDER / "step").write_text(str(os.getpid()))

    def on_exception(self, *_) -> None:
        (FOLDER / "stopped").write_text(repr(time.time()))


def main() -> None:
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    workers = OPTIONS["workers"]
    own = (
        {}
        if not workers
        else {"multiprocessing_context": OPTIONS["context"], "persistent_workers": OPTIONS["persistent"]}
    )
    loader = Loader(Samples(), 2, num_workers=workers, worker_init_fn=ignore if OPTIONS["mended"] else None, **own)
    Trainer(
        strategy=OPTIONS.get("strategy", "auto"),
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", 1)),
        max_steps=OPTIONS.get("stops_at", 1500),
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[AutoResume(FOLDER), SpotInterruption(FOLDER, save_every=None), Tell()],
    ).fit(Model(), loader)


if __name__ == "__main__":
    main()
