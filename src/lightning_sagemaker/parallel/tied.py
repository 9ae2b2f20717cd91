# SPDX-License-Identifier: Apache-2.0
"""Parameters that several stages of a pipeline use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.partition import Partition


class TiedParameters:
    """Parameters that several processes of a pipeline hold, such as a word embedding tied to the output layer.

    Args:
        root: The module with all parameters.
        partition: Partition of the model.
        groups: Process groups of the job.

    """

    def __init__(self, root: nn.Module, partition: Partition, groups: ParallelGroups) -> None:
        ranks = len(groups.pipeline_ranks)
        world_size = dist.get_world_size()
        self._held: list[tuple[nn.Parameter, dist.ProcessGroup]] = []
        made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for name, parameter in root.named_parameters():
            places = tuple(sorted({stage % ranks for stage in partition.stages[name]}))
            if len(places) < 2:
                continue
            if places not in made:
                members = [[ring[place] for place in places] for ring in groups.degrees.groups("PP", world_size)]
                made[places] = _own_group(members, groups.rank)
            group = made[places]
            if group is not None:
                self._held.append((parameter, group))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The tied parameters that this process holds."""
        return [parameter for parameter, _ in self._held]

    @torch.no_grad()
    def make_equal(self) -> None:
        """Broadcast the first stage's values. Collective over the stages that hold a parameter."""
        for parameter, group in self._held:
            dist.broadcast(parameter.data, dist.get_global_rank(group, 0), group)

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Sum the gradients of all uses. Collective over the stages that hold a parameter."""
        for parameter, group in self._held:
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)


def _own_group(members: Sequence[Sequence[int]], rank: int) -> dist.ProcessGroup | None:
    """Create a group for each pipeline, as torch requires of every process; returns that of ``rank``, if any."""
    made = [(ranks, dist.new_group(list(ranks))) for ranks in members]
    return next((group for ranks, group in made if rank in ranks), None)
