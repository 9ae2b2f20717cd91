# SPDX-License-Identifier: Apache-2.0
"""A plain Trainer script: a small regression, with checkpoints that survive a spot interruption.

On a laptop::

    python docs/examples/trainer.py --max_steps 100

Rehearsed on two simulated hosts, with the same losses, because both train on the same global batches::

    lightning-sagemaker local --hosts 2 --distribution smddp -- python docs/examples/trainer.py --max_steps 100

On SageMaker::

    lightning-sagemaker launch docs/examples/trainer.py --instance-type ml.p4d.24xlarge --instance-count 2 --distribution smddp
"""  # noqa: E501

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker import AutoResume, MetricLogger, ResumableLoader, SageMakerJob, SpotInterruption

GLOBAL_BATCH = 32
"""Samples of an optimizer step, over all processes."""


class Regression(LightningModule):
    """Learns the norm of a vector."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
        inputs = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0))
        self.dataset = TensorDataset(inputs, inputs.norm(dim=1, keepdim=True))

    def train_dataloader(self) -> DataLoader:
        """Batches whose samples depend on the seed and the step, not on the number of processes."""
        return ResumableLoader(self.dataset, self.trainer, batch_size=GLOBAL_BATCH // self.trainer.world_size)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The mean squared error."""
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.log("loss", loss, sync_dist=True)  # the mean over all processes
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


def main() -> None:
    """Train, and write the weights to the folder that SageMaker keeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_steps", type=int, default=100, help="optimizer steps")
    parser.add_argument("--learning_rate", type=float, default=1e-2, help="of AdamW")
    arguments = parser.parse_args()

    job = SageMakerJob.from_environment()
    in_job = job.in_container
    folder = Path("runs/trainer")
    checkpoints, model = (job.checkpoint_dir, job.model_dir) if in_job else (folder / "checkpoints", folder / "model")
    seed_everything(0)
    module = Regression(arguments.learning_rate)
    trainer = Trainer(
        strategy="sagemaker",  # importing lightning_sagemaker has registered it
        max_steps=arguments.max_steps,
        max_epochs=-1,
        logger=MetricLogger(),
        log_every_n_steps=10,
        enable_checkpointing=False,  # the callbacks below save
        enable_progress_bar=False,
        callbacks=[AutoResume(checkpoints, search=in_job), SpotInterruption(checkpoints)],
    )
    trainer.fit(module)
    if trainer.is_global_zero:
        model.mkdir(parents=True, exist_ok=True)
        torch.save(module.model.state_dict(), model / "model.pt")


if __name__ == "__main__":
    main()
