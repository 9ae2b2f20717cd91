# SPDX-License-Identifier: Apache-2.0
"""Which ranks share a host, and process groups within and across hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Topology:
    """The ranks of each host.

    Attributes:
        hosts: Ranks of each host; hosts are in the order of their first rank.

    """

    hosts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, host_of_rank: Sequence[int]) -> Topology:
        """Create a topology from the host number of each rank."""
        hosts: dict[int, list[int]] = {}
        for rank, host in enumerate(host_of_rank):
            hosts.setdefault(host, []).append(rank)
        return cls(tuple(map(tuple, hosts.values())))

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return sum(map(len, self.hosts))

    @property
    def description(self) -> str:
        """A phrase such as ``2 hosts x 8 processes``."""
        sizes = sorted({len(ranks) for ranks in self.hosts})
        each = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        return f"{len(self.hosts)} host{'s' * (len(self.hosts) > 1)} x {each} process{'es' * (each != '1')}"

    @property
    def obstacle(self) -> str | None:
        """Why a hierarchical reduction is impossible or useless; None if it can be used."""
        sizes = {len(ranks) for ranks in self.hosts}
        if len(self.hosts) == 1:
            return "there is one host"
        if len(sizes) > 1:
            return f"hosts have different numbers of processes ({self.description})"
        return "each host has one process" if sizes == {1} else None

    @property
    def across(self) -> tuple[tuple[int, ...], ...]:
        """For each local rank, the ranks that have it, one of each host."""
        return tuple(zip(*self.hosts, strict=True))


class Groups:
    """Process groups of a topology, each created by the first :meth:`get`, which is collective over all ranks.

    Concurrent stages need a group each, since the collectives of one group run in one order.

    Args:
        topology: Topology of the default group.
        backend: ``gloo`` or ``nccl``.
        timeout: Time limit of a collective; the backend's default if None.

    """

    def __init__(self, topology: Topology, backend: str, timeout: timedelta | None = None) -> None:
        self.topology = topology
        self._backend, self._timeout = backend, timeout
        self._made: dict[tuple[str, str], ProcessGroup] = {}
        self._default = dist.group.WORLD

    @property
    def is_current(self) -> bool:
        """Whether the default group is still the one that these groups were created under."""
        return self._default is not None and self._default is dist.group.WORLD

    def get(self, extent: str, purpose: str) -> ProcessGroup:
        """The group that this process is a member of.

        Args:
            extent: ``all`` ranks, those ``within`` a host, or those ``across`` hosts with the same local rank.
            purpose: Name of the stage; each has a group of its own.

        """
        if (extent, purpose) not in self._made:
            lists = {"all": (tuple(range(self.topology.world_size)),), "within": self.topology.hosts}
            self._made[extent, purpose] = self._make(lists.get(extent) or self.topology.across)
        return self._made[extent, purpose]

    def _make(self, lists: Sequence[Sequence[int]]) -> ProcessGroup:
        own: ProcessGroup | None = None
        for ranks in lists:
            group = dist.new_group(list(ranks), timeout=self._timeout, backend=self._backend)
            if dist.get_rank() in ranks:
                own = group
        assert own is not None
        return own
