# SPDX-License-Identifier: Apache-2.0
"""A LightningCLI project: everything is in config.yaml, and can be changed on the command line.

On a laptop::

    python docs/examples/cli_project/main.py fit --config docs/examples/cli_project/config.yaml

Rehearsed on two simulated hosts::

    lightning-sagemaker local --hosts 2 --distribution smddp --source-dir docs/examples/cli_project -- python main.py fit --config config.yaml

On SageMaker (hyperparameters become ``--name value``, so the stage and the file have defaults)::

    lightning-sagemaker launch main.py --source-dir docs/examples/cli_project --instance-type ml.g5.12xlarge --distribution ddp
"""  # noqa: E501

from __future__ import annotations

import sys
from pathlib import Path

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import RandomDataset
from torch import Tensor, nn
from torch.utils.data import DataLoader

import lightning_sagemaker  # noqa: F401  # registers "sagemaker", which config.yaml names


class Autoencoder(LightningModule):
    """Compresses random vectors.

    Args:
        hidden: Size of the code.
        batch_size: Samples per process and step.

    """

    def __init__(self, hidden: int = 8, batch_size: int = 16) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.model = nn.Sequential(nn.Linear(32, hidden), nn.Linear(hidden, 32))

    def train_dataloader(self) -> DataLoader:
        """Lightning gives each process its share of these."""
        return DataLoader(RandomDataset(32, 512), batch_size=self.batch_size)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """The error of reconstruction."""
        loss = nn.functional.mse_loss(self.model(batch), batch)
        self.log("loss", loss, prog_bar=True)
        return loss


def main(arguments: list[str]) -> None:
    """Run a stage; ``fit`` with the configuration next to this file, by default."""
    if not arguments or arguments[0].startswith("--"):
        arguments = ["fit", f"--config={Path(__file__).with_name('config.yaml')}", *arguments]
    LightningCLI(Autoencoder, args=arguments, save_config_callback=None)  # its only logger, MetricLogger, has no folder


if __name__ == "__main__":
    main(sys.argv[1:])
