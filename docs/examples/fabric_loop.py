# SPDX-License-Identifier: Apache-2.0
"""A training loop of your own with Fabric, which stops with a checkpoint when it is interrupted, and resumes.

On a laptop (press Ctrl-C, and start it again)::

    python docs/examples/fabric_loop.py --epochs 3

Rehearsed on two simulated hosts::

    lightning-sagemaker local --hosts 2 --distribution smddp -- python docs/examples/fabric_loop.py --epochs 3

On SageMaker::

    lightning-sagemaker launch docs/examples/fabric_loop.py --instance-type ml.g5.12xlarge --instance-count 2 --distribution ddp
"""  # noqa: E501

from __future__ import annotations

import argparse

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker import InterruptibleLoop, SageMakerJob


def main() -> None:
    """Train a classifier of points on a plane: inside of a circle, or outside."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="passes over the data")
    arguments = parser.parse_args()

    job = SageMakerJob.from_environment()
    fabric = Fabric(strategy="sagemaker")
    fabric.launch()
    fabric.seed_everything(0)
    points = torch.rand(2048, 2) * 2 - 1
    inside = (points.square().sum(dim=1) < 0.5).long()
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(points, inside), batch_size=64, shuffle=True))
    network = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=1e-2))

    state = {"model": model, "optimizer": optimizer}
    checkpoints = job.checkpoint_dir if job.in_container else "runs/fabric-loop/checkpoints"
    loop = InterruptibleLoop(fabric, checkpoints, state)
    for epoch in loop.epochs(arguments.epochs):
        for inputs, labels in loop.batches(loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            right = (model(points.to(fabric.device)).argmax(dim=1).cpu() == inside).float().mean()
        fabric.print(f"epoch={epoch} accuracy={right:.4f}")


if __name__ == "__main__":
    main()
