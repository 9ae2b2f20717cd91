# SPDX-License-Identifier: Apache-2.0
"""A training with a known sleep in each part of its step; it knows nothing of bench.

Data 20 ms, forward 30 ms (and 25 more on rank 1), backward 15 ms, optimizer 10 ms. Lightning's SimpleProfiler is run, too.
"""

import argparse
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.profilers import SimpleProfiler
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.randn(256)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(0.015)
        return gradient


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        time.sleep(0.010)
        return loss


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(256, 256)

    def training_step(self, batch, batch_idx):
        time.sleep(0.030 + 0.025 * (self.global_rank == 1))
        return SlowBackward.apply(self.net(batch)).square().mean()

    def configure_optimizers(self):
        return SlowSGD(self.parameters(), 1e-3)

    def train_dataloader(self):
        return DataLoader(Slow(), batch_size=4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--max_steps", type=int, default=27)
    given, _ = parser.parse_known_args()
    torch.set_num_threads(1)  # the threads that a product wakes after each sleep take longer than it
    trainer = Trainer(
        accelerator="cpu",
        devices=given.devices,
        strategy="ddp" if given.devices > 1 else "auto",
        max_steps=given.max_steps,
        profiler=SimpleProfiler(given.profile, "simple"),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model())
