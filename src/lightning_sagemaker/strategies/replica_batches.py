# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a pipeline's replicas exchange around a step: batches before it, metric states after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.inputs import Reads
from lightning_sagemaker.parallel.microbatches import split
from lightning_sagemaker.parallel.model import PipelinedModel
from lightning_sagemaker.parallel.structure import tensors_in
from lightning_sagemaker.strategies.merge import moved_to

if TYPE_CHECKING:
    from lightning_sagemaker._lightning import DDPStrategy as Host
else:
    Host = object


class ReplicaBatches(Host):
    """Mixin before a strategy whose module is partitioned at its first step: the batches of its steps."""

    degrees: ParallelDegrees
    groups: ParallelGroups
    _pipeline: PipelinedModel | None
    _whole_batches = False
    _said_whole = False

    def _use(self, name: str, args: Sequence[object]) -> str | None:
        """A step of which the first says what of its batches each stage reads; None if it does not say so for others."""
        module = self.lightning_module
        assert module is not None
        return None if self._whole_batches or module.trainer.sanity_checking else f"{name}{args[1:]}"

    def _batch(self, batch: object, use: str | None) -> object:
        return batch_of_first(batch, self.groups, self.root_device, use if self._pipeline else None)

    def _even_parts(self, batch: object, use: str | None) -> list[object]:
        """The batch in microbatches, or in one where it cannot be split evenly: evaluations log each with equal weight."""
        batch = self._batch(batch, use)
        try:
            return split(batch, self.degrees.microbatches)
        except ParallelConfigError as error:
            if not self._said_whole:
                self._said_whole = True
                rank_zero_info(f"Batches that cannot be split evenly run as one microbatch: {error}")
            return [batch]


def batch_of_first(batch: object, groups: ParallelGroups, device: torch.device, use: str | None = None) -> object:
    """The batch of the first process of this model replica, on all of them. Collective over the replica.

    Args:
        batch: The batch of this process.
        groups: Process groups of the parallel layout.
        device: Device of this process.
        use: What is done with it: only what this process has read in the first such step has values; None: all of it.

    """
    shared = groups.batches.share(batch, use)
    return batch if shared is batch else moved_to(shared, device)


@contextmanager
def noting_reads(parts: Sequence[object], groups: ParallelGroups, use: str | None) -> Iterator[Reads]:
    """Around a step with the batch that was shared last: find out which of its tensors this process reads.

    What it gives is to look into what the step returns and logs.

    Args:
        parts: Its microbatches.
        groups: Process groups of the parallel layout.
        use: What is done with it; None: nothing is noted.

    """
    channel = groups.batches
    if use is None or channel.is_source or channel.knows_reads(use):
        yield Reads([])
        return
    reads = Reads([tensors_in(part) for part in parts])
    with reads:
        yield reads
    numbers_only = len(tensors_in(parts[0]))  # the tensor of floating-point numbers, which has no place in the batch
    channel.note_reads(use, {*reads.found, numbers_only})


def gather_of_last_stages(tensor: Tensor, degrees: ParallelDegrees, world_size: int) -> list[Tensor]:
    """A metric's states of all replicas, from their last stages, which see every step. Collective.

    Args:
        tensor: State of this process.
        degrees: The parallel layout.
        world_size: Number of processes.

    """
    found: list[Tensor] = gather_all_tensors(tensor)
    places = (degrees.coordinates(rank, world_size) for rank in range(world_size))
    last = degrees.pipeline - 1
    return [state for state, at in zip(found, places, strict=True) if at.pipeline == last and at.tensor == 0]
