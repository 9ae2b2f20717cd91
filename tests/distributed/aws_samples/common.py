# SPDX-License-Identifier: Apache-2.0
"""What the sample scripts train and how they tell of it; imports nothing of SageMaker's."""

import json
import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GLOBAL_BATCH, EPOCHS, RATE = 8, 2, 0.1


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def dataset() -> TensorDataset:
    return TensorDataset(torch.linspace(-1, 1, 128).reshape(32, 4))


def loader(rank: int, world_size: int) -> DataLoader:
    """This rank's part of each global batch, as AWS's samples divide it."""
    sampler = DistributedSampler(dataset(), num_replicas=world_size, rank=rank, shuffle=False)
    return DataLoader(dataset(), batch_size=GLOBAL_BATCH // world_size, sampler=sampler)


def train(model: torch.nn.Module, batches: DataLoader) -> torch.Tensor:
    """The loss of the last batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for (x,) in batches:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
    return loss.detach()


def weights(model: torch.nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def report(**facts: object) -> None:
    """Write what this rank found, where every.py looks for it."""
    Path(os.environ["SAMPLE_REPORT"]).write_text(json.dumps(facts))
