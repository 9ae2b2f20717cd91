# SPDX-License-Identifier: Apache-2.0
"""The process groups of a parallel layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker.parallel.degrees import Coordinates, ParallelDegrees
from lightning_sagemaker.parallel.exchange import Channel
from lightning_sagemaker.parallel.structure import StructureChannel

KINDS = ("PP", "TP", "RDP", "MP", "DP")


@dataclass(frozen=True)
class ParallelGroups:
    """Coordinates and process groups of this process.

    Attributes:
        degrees: The layout.
        rank: Global rank of this process.
        at: Coordinates of this process in the layout.
        ranks: Kind (``PP``, ``TP``, ``RDP``, ``MP``, ``DP``) -> global ranks of this process's group, ascending.
        groups: Kind -> this process's process group.
        cpu_groups: Kind -> the process group for objects and CPU tensors.
        channels: Ordered pairs of neighboring stages' ranks of this model replica -> their channels.
        batches: Channel from the first process of a model replica to its others.
        inputs: Channel from the first stage to the others of its pipeline.
        results: Channel from the last stage to the others of its pipeline.

    """

    degrees: ParallelDegrees
    rank: int
    at: Coordinates
    ranks: dict[str, list[int]]
    groups: dict[str, dist.ProcessGroup]
    cpu_groups: dict[str, dist.ProcessGroup]
    channels: dict[tuple[int, int], Channel]
    batches: StructureChannel
    inputs: StructureChannel
    results: StructureChannel

    @classmethod
    def build(cls, degrees: ParallelDegrees) -> ParallelGroups:
        """Create all groups. Collective: every process of the job calls it, with the same degrees.

        Raises:
            ParallelConfigError: If the degrees do not fit the number of processes; raised before any group is created.

        """
        rank, world_size = dist.get_rank(), dist.get_world_size()
        degrees.replicas(world_size)
        on_cpu = dist.get_backend() == "gloo"
        ranks: dict[str, list[int]] = {}
        groups: dict[str, dist.ProcessGroup] = {}
        cpu_groups: dict[str, dist.ProcessGroup] = {}
        for kind in KINDS:
            members = degrees.groups(kind, world_size)
            ranks[kind] = degrees.group_of(kind, rank, world_size)
            groups[kind] = create_groups(members)[rank]
            cpu_groups[kind] = groups[kind] if on_cpu else create_groups(members, "gloo")[rank]
        channels = _channels(degrees.groups("PP", world_size), rank, on_cpu) if degrees.pipeline > 1 else {}
        at = degrees.coordinates(rank, world_size)
        of_replica, of_pipeline = (cpu_groups["MP"], ranks["MP"]), (cpu_groups["PP"], ranks["PP"])
        return cls(
            degrees,
            rank,
            at,
            ranks,
            groups,
            cpu_groups,
            channels,
            batches=StructureChannel(*of_replica, ranks["MP"][0], rank),
            inputs=StructureChannel(*of_pipeline, ranks["PP"][0], rank),
            results=StructureChannel(*of_pipeline, ranks["PP"][-1], rank),
        )

    def stage_rank(self, stage: int) -> int:
        """Global rank of the process of this model replica that has a stage."""
        return self.pipeline_ranks[stage % len(self.pipeline_ranks)]

    @property
    def pipeline_ranks(self) -> list[int]:
        """Global ranks of the stages of this model replica, in the order of the stages."""
        return self.ranks["PP"]  # a rank grows with each of its digits, so ascending is in order


def create_groups(members: Iterable[Sequence[int]], backend: str | None = None) -> dict[int, dist.ProcessGroup]:
    """Create disjoint groups; returns the group of each rank. Collective over all processes, as torch requires."""
    found: dict[int, dist.ProcessGroup] = {}
    for ranks in members:
        found |= dict.fromkeys(ranks, dist.new_group(list(ranks), backend=backend))
    return found


@torch.no_grad()
def broadcast_from_first(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Broadcast the values of a group's first process, in place. Collective over the group."""
    if dist.get_world_size(group) > 1:
        source = dist.get_global_rank(group, 0)
        for tensor in tensors:
            dist.broadcast(tensor.data, source, group)


def _channels(pipelines: Sequence[Sequence[int]], rank: int, on_cpu: bool) -> dict[tuple[int, int], Channel]:
    found = {}
    for ranks in pipelines:
        for place, one in enumerate(ranks):
            other = ranks[(place + 1) % len(ranks)]
            for source, target in ((one, other), (other, one)):
                if (source, target) in found:
                    continue  # with two stages, each is the other's neighbor on both sides
                headers = dist.new_group(sorted((source, target)), backend="gloo")
                payload = headers if on_cpu else dist.new_group(sorted((source, target)))
                found[source, target] = Channel(source, target, headers, payload)
    return {pair: channel for pair, channel in found.items() if rank in pair}
