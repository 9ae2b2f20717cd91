# SPDX-License-Identifier: Apache-2.0
"""What the processes of a pipeline's model replicas exchange around a step: batches before it, metrics' states after it."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.strategies.merge import moved_to


def batch_of_first(batch: object, groups: ParallelGroups, device: torch.device) -> object:
    """The batch of the first process of this model replica, on all of them. Collective over the replica.

    Args:
        batch: What this process has read.
        groups: Process groups of the parallel layout.
        device: Device of this process.

    """
    shared = groups.batches.share(batch)
    return batch if shared is batch else moved_to(shared, device)


def gather_of_last_stages(tensor: Tensor, degrees: ParallelDegrees, world_size: int) -> list[Tensor]:
    """A metric's states of all replicas; those of the last stages count, which see every step. Collective.

    Args:
        tensor: State of this process.
        degrees: The parallel layout.
        world_size: Number of processes.

    """
    found: list[Tensor] = gather_all_tensors(tensor)
    places = (degrees.coordinates(rank, world_size) for rank in range(world_size))
    last = degrees.pipeline - 1
    return [state for state, at in zip(found, places, strict=True) if at.pipeline == last and at.tensor == 0]
