# SPDX-License-Identifier: Apache-2.0
"""Initialization of SMP, its ranks and its process groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch.distributed as dist

from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def init(config: Mapping[str, object] | None = None) -> None:
    """Read the configuration and create the process groups. Calling it again does nothing.

    Args:
        config: Keys of ``mp_parameters``; overridden by the job's.

    Raises:
        ParallelConfigError: If the configuration contradicts itself or the number of processes.

    """
    state.initialize(config)


def is_initialized() -> bool:
    """Whether :func:`init` was called."""
    return state.initialized


def is_tracing() -> bool:
    """Whether the model is being traced, to learn how it can be partitioned."""
    return state.is_tracing


def rank() -> int:
    """Global rank of this process."""
    return state.groups.rank


def size() -> int:
    """Number of processes."""
    return _size("WORLD")


def local_rank() -> int:
    """Rank of this process on its host."""
    found = state.job.local_rank
    return 0 if found is None else found


def local_size() -> int:
    """Number of processes on this host."""
    return state.job.local_world_size or 1


def _size(kind: str) -> int:
    ranks = state.groups.ranks  # raises before init
    return dist.get_world_size() if kind == "WORLD" else len(ranks[kind])


def _rank(kind: str) -> int:
    return state.groups.ranks[kind].index(state.groups.rank)


def pp_rank() -> int:
    """Pipeline parallel rank: which stages this process has."""
    return _rank("PP")


def pp_size() -> int:
    """Number of processes among which the layers are partitioned."""
    return _size("PP")


def tp_rank() -> int:
    """Tensor parallel rank: which shard of each matrix this process has."""
    return _rank("TP")


def tp_size() -> int:
    """Number of processes that shard each matrix."""
    return _size("TP")


def rdp_rank() -> int:
    """Rank of this process among those that hold the same parameters."""
    return _rank("RDP")


def rdp_size() -> int:
    """Number of processes that hold the same parameters."""
    return _size("RDP")


def dp_rank() -> int:
    """Data parallel rank among the processes with the same stage: which data this process trains on."""
    return _rank("DP")


def dp_size() -> int:
    """Number of processes that hold the same stage."""
    return _size("DP")


def mp_rank() -> int:
    """Model parallel rank: rank of this process within its model replica."""
    return _rank("MP")


def mp_size() -> int:
    """Number of processes of one model replica."""
    return _size("MP")


def _process_group(kind: str) -> ProcessGroup:
    group: ProcessGroup = state.groups.groups[kind]
    return group


def get_world_process_group() -> ProcessGroup | None:
    """Group of all processes."""
    state.groups  # noqa: B018 - raises before init
    return dist.group.WORLD


def get_pp_process_group() -> ProcessGroup | None:
    """Group of the stages of this model replica."""
    return _process_group("PP")


def get_tp_process_group() -> ProcessGroup | None:
    """Group of the processes that shard the same matrices as this process."""
    return _process_group("TP")


def get_rdp_process_group() -> ProcessGroup | None:
    """Group of the processes that hold the same parameters."""
    return _process_group("RDP")


def get_dp_process_group() -> ProcessGroup | None:
    """Group of the processes that hold the same stage."""
    return _process_group("DP")


def get_mp_process_group() -> ProcessGroup | None:
    """Group of the processes of this model replica."""
    return _process_group("MP")


def get_pp_group() -> list[int]:
    """Global ranks of :func:`get_pp_process_group`."""
    return list(state.groups.ranks["PP"])


def get_tp_group() -> list[int]:
    """Global ranks of :func:`get_tp_process_group`."""
    return list(state.groups.ranks["TP"])


def get_rdp_group() -> list[int]:
    """Global ranks of :func:`get_rdp_process_group`."""
    return list(state.groups.ranks["RDP"])


def get_dp_group() -> list[int]:
    """Global ranks of :func:`get_dp_process_group`."""
    return list(state.groups.ranks["DP"])


def get_mp_group() -> list[int]:
    """Global ranks of :func:`get_mp_process_group`."""
    return list(state.groups.ranks["MP"])
