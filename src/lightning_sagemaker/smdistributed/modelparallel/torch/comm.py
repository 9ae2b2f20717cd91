# SPDX-License-Identifier: Apache-2.0
"""SMP's calls that send objects between processes."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class CommGroup(Enum):
    """Kind of group that a call reaches; this process is in one group of each kind."""

    WORLD = "WORLD"
    MP_GROUP = "MP"
    DP_GROUP = "DP"
    TP_GROUP = "TP"
    PP_GROUP = "PP"
    RDP_GROUP = "RDP"


class RankType(Enum):
    """Kind of group in which a rank is numbered."""

    WORLD_RANK = "WORLD"
    MP_RANK = "MP"
    DP_RANK = "DP"
    TP_RANK = "TP"
    PP_RANK = "PP"
    RDP_RANK = "RDP"


WORLD, MP_GROUP, DP_GROUP = CommGroup.WORLD, CommGroup.MP_GROUP, CommGroup.DP_GROUP
TP_GROUP, PP_GROUP, RDP_GROUP = CommGroup.TP_GROUP, CommGroup.PP_GROUP, CommGroup.RDP_GROUP


def _members(group: CommGroup | RankType) -> list[int]:
    if not isinstance(group, CommGroup | RankType):
        raise TypeError(f"{group!r} was given as a group. HINT: use one such as smp.DP_GROUP or smp.RankType.DP_RANK.")
    ranks = state.groups.ranks  # raises before init
    return list(range(dist.get_world_size())) if group.value == "WORLD" else ranks[group.value]


def _member(rank: int, rank_type: RankType) -> int:
    """Global rank of one process."""
    members = _members(rank_type)
    if not 0 <= rank < len(members) or members[rank] == state.groups.rank:
        raise ValueError(
            f"rank {rank} of {rank_type.name} was given on rank {members.index(state.groups.rank)} of {len(members)}."
            " HINT: name another process of the group."
        )
    return members[rank]


def _process_group(group: CommGroup) -> ProcessGroup | None:
    _members(group)
    found: ProcessGroup | None = state.objects if group is WORLD else state.groups.cpu_groups[group.value]
    return found


def barrier(group: CommGroup = WORLD) -> None:
    """Wait for all processes of a group."""
    dist.barrier(group=_process_group(group))


def mp_barrier() -> None:
    """Wait for all processes of this model replica."""
    barrier(MP_GROUP)


def dp_barrier() -> None:
    """Wait for all processes with the same stage."""
    barrier(DP_GROUP)


def allgather(obj: object, group: CommGroup) -> list[object]:
    """The objects of all processes of a group, in the order of their ranks; collective."""
    found: list[object] = [None] * len(_members(group))
    dist.all_gather_object(found, obj, group=_process_group(group))
    return found


def broadcast(obj: object, group: CommGroup) -> None:
    """Send to all other processes of a group, each of which calls :func:`recv_from`; only the sender calls this."""
    for member in _members(group):
        if member != state.groups.rank:
            dist.send_object_list([obj], member, group=state.objects)


def send(obj: object, dest_rank: int, rank_type: RankType) -> None:
    """Send to one process, which calls :func:`recv_from`.

    Args:
        obj: Any object that can be pickled.
        dest_rank: Rank of the receiver.
        rank_type: Kind of group in which that rank is numbered.

    """
    dist.send_object_list([obj], _member(dest_rank, rank_type), group=state.objects)


def recv_from(src_rank: int, rank_type: RankType) -> Any:
    """Receive the object that one process sends by :func:`send` or :func:`broadcast`.

    Args:
        src_rank: Rank of the sender.
        rank_type: Kind of group in which that rank is numbered.

    """
    box: list[object] = [None]
    dist.recv_object_list(box, _member(src_rank, rank_type), group=state.objects)
    return box[0]
