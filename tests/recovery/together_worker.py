# SPDX-License-Identifier: Apache-2.0
"""Ranks that need each other, and have no copies in memory: ``together_worker.py OUT_DIR KIND``; rank 1 dies after step 7.

Each step of rank zero is a line of ``OUT_DIR/steps.txt``. With a file ``OUT_DIR/died`` nobody dies.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker import FabricSMDDPFSDPStrategy, SageMakerDDPStrategy, SMPStrategy

OUT = Path(sys.argv[1])
WIDTH, SAMPLES = 8, 32


def step_is_over(rank: int, step: int, loss: float) -> None:
    if rank == 0:
        with (OUT / "steps.txt").open("a") as file:
            file.write(f"{step} {loss}\n")
    if rank == 1 and step == 7 and not (OUT / "died").exists():
        (OUT / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


class Steps(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, *_):
        step_is_over(trainer.global_rank, trainer.global_step, float(outputs["loss"]))


def with_trainer(strategy) -> None:
    data = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH))
    saving = ModelCheckpoint(OUT / "checkpoints", every_n_train_steps=2, save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_epochs=3, callbacks=[Steps(), saving], **quiet
    )
    trainer.fit(Module(), DataLoader(data, 4))


def with_fabric() -> None:
    """A loop that begins from scratch."""
    fabric = Fabric(strategy=FabricSMDDPFSDPStrategy(), accelerator="cpu", devices=2)
    fabric.launch()
    module = Module()
    module, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), 0.1))
    for step in range(1, 13):
        loss = module(torch.ones(2, WIDTH)).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step_is_over(fabric.global_rank, step, loss.item())


if __name__ == "__main__":
    seed_everything(0, verbose=False)
    {
        "stages": lambda: with_trainer(SMPStrategy(parameters={"partitions": 2, "microbatches": 2, "ddp": True})),
        "restart": lambda: with_trainer(SageMakerDDPStrategy(recovery="restart")),
        "fabric": with_fabric,
    }[sys.argv[2]]()
