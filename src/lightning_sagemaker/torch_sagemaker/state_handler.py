# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.state_handler``: the parallel layout of the job, and its process groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.parallel.sharding import DP_REPLICATE, DP_SHARD, TP

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class _Tracker:
    """Stand-in for the RNG state tracker: with DTensor, all ranks of a tensor parallel group draw the same numbers."""

    @contextmanager
    def fork(self, name: str = "") -> Iterator[None]:
        """Without effect."""
        yield

    def add(self, name: str, seed: int) -> None:
        """Without effect."""


class Ranker:
    """Finds the ranks that hold the same parameters.

    Args:
        degrees: Parallel degrees of the job.
        world_size: Number of processes.

    """

    def __init__(self, degrees: ParallelDegrees, world_size: int) -> None:
        self._degrees, self._world_size = degrees, world_size
        self._shards = degrees.shards(world_size)

    def _place(self, rank: int) -> tuple[int, int, int]:
        at = self._degrees.coordinates(rank, self._world_size)
        copy, shard = divmod(at.replica, self._shards)
        return shard, at.tensor, copy

    def get_rep_rank(self, rank: int) -> int:
        """Number of the sharded model's replica that ``rank`` is in."""
        return self._place(rank)[2]

    def get_rep_groups(self) -> list[list[int]]:
        """Groups of ranks that hold the same shard."""
        groups: dict[tuple[int, int], list[int]] = {}
        for rank in range(self._world_size):
            shard, tensor, _ = self._place(rank)
            groups.setdefault((shard, tensor), []).append(rank)
        return list(groups.values())


class State:
    """``tsm.state``; the degrees may be set by scripts, as AWS's samples do when they run without the library."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset to the state before ``tsm.init()``; existing process groups remain."""
        self.degrees = ParallelDegrees()
        self.mesh: DeviceMesh | None = None
        self.fsdp_mesh: DeviceMesh | None = None
        self.cpu_groups: dict[tuple[int, ...], ProcessGroup] = {}
        self.shared: set[str] = set()
        self.hybrid_shard_degree = 0
        self.tensor_parallel_degree = self.context_parallel_degree = self.expert_parallel_degree = 1
        self.sm_activation_offloading = True

    def set(
        self,
        degrees: ParallelDegrees,
        mesh: DeviceMesh,
        fsdp_mesh: DeviceMesh,
        cpu_groups: dict[tuple[int, ...], ProcessGroup],
    ) -> None:
        """Set the layout; called by ``tsm.init()``."""
        self.degrees, self.mesh, self.fsdp_mesh, self.cpu_groups = degrees, mesh, fsdp_mesh, cpu_groups
        self.hybrid_shard_degree, self.tensor_parallel_degree = degrees.shard, degrees.tensor
        self.ranker = Ranker(degrees, dist.get_world_size())

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return dist.get_world_size()

    @property
    def rank(self) -> int:
        """Global rank of this process."""
        return dist.get_rank()

    @property
    def world_process_group(self) -> ProcessGroup | None:
        """Group of all processes."""
        return dist.group.WORLD

    def _of(self, dimension: str) -> DeviceMesh:
        if self.mesh is None:
            raise RuntimeError("torch.sagemaker was not initialized. HINT: call torch.sagemaker.init() first.")
        return self.mesh[dimension]

    @property
    def tp_size(self) -> int:
        """Number of processes that shard each matrix."""
        return int(self._of(TP).size())

    @property
    def tp_rank(self) -> int:
        """Tensor parallel rank of this process."""
        return int(self._of(TP).get_local_rank())

    @property
    def tp_process_group(self) -> ProcessGroup:
        """Group of the processes that shard the same matrices."""
        return self._of(TP).get_group()

    @property
    def rep_rank_process_group(self) -> ProcessGroup:
        """Group of the processes that hold the same shard."""
        return self._of(DP_REPLICATE).get_group()

    @property
    def shard_process_group(self) -> ProcessGroup:
        """Group of the processes that shard a replica's parameters."""
        return self._of(DP_SHARD).get_group()

    cp_size = ep_size = 1
    cp_rank = ep_rank = 0
    cp_process_group: ProcessGroup | None = None

    @staticmethod
    def get_rng_state_tracker() -> _Tracker:
        """A tracker without effect."""
        return _Tracker()


state = State()
