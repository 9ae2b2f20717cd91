# SPDX-License-Identifier: Apache-2.0
"""A small training with a loader's process and a checkpoint; rank zero writes its loss into FOLDER."""

import argparse
import json
import os
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import lightning_sagemaker  # noqa: F401

WIDTH = 512
"""A checkpoint has 3 MiB: weights and two moments."""


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))

    def training_step(self, batch, _):
        samples, targets = batch
        self.loss = torch.nn.functional.mse_loss(self.layers(samples).squeeze(-1), targets)
        self.log("train_loss", self.loss, sync_dist=True)
        return self.loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--strategy", default="sagemaker")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    pl.seed_everything(1)
    samples = torch.randn(32, WIDTH)
    workers = int(hasattr(os, "fork"))  # on the simulated Windows Python still starts processes as on Linux
    loader = DataLoader(TensorDataset(samples, samples.sum(1)), batch_size=4, num_workers=workers)
    trainer = pl.Trainer(
        strategy=options.strategy,
        devices=options.devices,
        max_steps=options.steps,
        default_root_dir=options.folder,
        callbacks=[pl.callbacks.ModelCheckpoint(options.folder / "checkpoints", every_n_train_steps=2, save_top_k=-1)],
        logger=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), loader)
    if trainer.is_global_zero:
        facts = {
            "loss": trainer.callback_metrics["train_loss"].item(),
            "processes": trainer.world_size,
            "accelerator": type(trainer.accelerator).__name__,
            "wrapped": isinstance(trainer.strategy.model, torch.nn.parallel.DistributedDataParallel),
            "grouped": torch.distributed.is_initialized(),
        }
        (options.folder / "result.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
