# SPDX-License-Identifier: Apache-2.0
"""Sharded training whose ranks are killed, and restarted by torchrun: ``memory_worker.py OUT_DIR DEATHS [EVERY]``.

``DEATHS`` is JSON, of each life of the processes: ranks, the step after which something happens to them, and what: they are
killed; with ``host`` their launcher too; with ``stop`` they are frozen; with ``raise`` they fail. Each step of rank zero is
a line of ``OUT_DIR/steps.jsonl``: its life, number, loss and time.
``OUT_DIR/rank-R.pt`` has the shards of each rank at the end.
"""

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from lightning_sagemaker import AutoResume, MemoryCheckpoint, SMDDPFSDPStrategy
from lightning_sagemaker.callbacks import memory_checkpoint

OUT, DEATHS = Path(sys.argv[1]), json.loads(sys.argv[2])
EVERY = int(sys.argv[3]) if len(sys.argv) > 3 else 3
RANK, FITS = int(os.environ["RANK"]), int(os.environ.get("FITS", "1"))
LINES = (OUT / "steps.jsonl").read_text().splitlines() if (OUT / "steps.jsonl").exists() else []
LIFE = json.loads(LINES[-1])["life"] + 1 if LINES else 0
STEPS, SAMPLES, BATCH, WIDTH = 24, 64, 2, 16


class Module(LightningModule):
    """Dropout, a schedule and a metric: their states are not in the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)) for _ in range(3)))
        self.head = nn.Linear(WIDTH, 1)
        self.mean = MeanMetric()

    def forward(self, x):
        return self.head(self.blocks(x)).squeeze(-1)

    def training_step(self, batch, _):
        x, y = batch
        loss = (self(x) - y).square().mean()
        self.mean(loss.detach())
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7), "interval": "step"}]


def die(how: str = "kill") -> None:
    if how == "raise":
        raise ZeroDivisionError
    if how == "host":
        os.kill(launcher(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)


def launcher() -> int:
    """The process of this rank's host that starts ranks; that of ``supervise`` may have another in between."""
    pid = os.getppid()
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return parent if b"supervise" in Path(f"/proc/{parent}/cmdline").read_bytes() else pid


class Steps(Callback):
    """Writes each step, and kills ranks; in the last fit only."""

    def __init__(self, fit: int) -> None:
        self.fit = fit

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        loss = trainer.strategy.reduce(outputs["loss"].detach(), reduce_op="mean").item()
        if RANK == 0:
            line = {"life": LIFE, "fit": self.fit, "step": trainer.global_step, "loss": loss, "at": time.monotonic()}
            with (OUT / "steps.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        ranks, step, *how = DEATHS[LIFE] if len(DEATHS) > LIFE and self.fit == FITS - 1 else ([], 0)
        if trainer.global_step == step:
            time.sleep(0.3)  # what is being written is complete
            if RANK in ranks:
                die(*how)

    def on_train_epoch_end(self, trainer, pl_module):
        if RANK == 0:
            with (OUT / "epochs.jsonl").open("a") as file:
                file.write(json.dumps(trainer.callback_metrics["mean"].item()) + "\n")


def fill_memory(rank: int, step: int) -> None:
    """Stands for a full tmpfs, which would need rights to mount one: writing fails on a rank from a step on."""
    write = memory_checkpoint.write_rank

    def fails(path, parts, rest):
        if rank == RANK and path.exists() and parts["optimizer_0"]["state"]["head.bias"]["step"] >= step:
            raise OSError(28, "No space left on device")
        write(path, parts, rest)

    memory_checkpoint.write_rank = fails
    memory_checkpoint.rank_zero_warn = lambda said: (OUT / "warned").write_text(said) if RANK == 0 else None


def main() -> None:
    if "MEMORY_IS_FULL" in os.environ:
        fill_memory(*json.loads(os.environ["MEMORY_IS_FULL"]))
    logging.getLogger("lightning_sagemaker").setLevel(logging.INFO)
    for number in range(FITS):
        fit(number)


def fit(number: int) -> None:
    seed_everything(number, verbose=False)
    data = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES))
    trainer = Trainer(
        strategy=SMDDPFSDPStrategy(),
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_steps=STEPS,
        callbacks=[Steps(number), AutoResume(OUT / "checkpoints"), MemoryCheckpoint(EVERY)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=OUT,
    )
    module = Module()
    trainer.fit(module, DataLoader(data, BATCH, shuffle=True))
    torch.save([one.to_local() for one in module.parameters()], OUT / f"rank-{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
