# SPDX-License-Identifier: Apache-2.0
"""Parameters that several stages of a pipeline use."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from lightning_sagemaker.parallel.groups import ParallelGroups, broadcast_from_first, create_groups
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
                made[places] = create_groups(members).get(groups.rank)
            group = made[places]
            if group is not None:
                self._held.append((parameter, group))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The tied parameters that this process holds."""
        return [parameter for parameter, _ in self._held]

    def make_equal(self) -> None:
        """Broadcast the first stage's values. Collective over the stages that hold a parameter."""
        for parameter, group in self._held:
            broadcast_from_first([parameter], group)

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Sum the gradients of all uses. Collective over the stages that hold a parameter."""
        for parameter, group in self._held:
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
