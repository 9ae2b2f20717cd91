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


def _members(kind: str) -> list[int]:
    return list(range(dist.get_world_size())) if kind == "WORLD" else state.groups.ranks[kind]


def _process_group(kind: str) -> ProcessGroup | None:
    group: ProcessGroup | None = state.objects if kind == "WORLD" else state.groups.cpu_groups[kind]
    return group


def barrier(group: CommGroup = WORLD) -> None:
    """Wait for all processes of a group."""
    dist.barrier(group=_process_group(group.value))


def mp_barrier() -> None:
    """Wait for all processes of this model replica."""
    barrier(MP_GROUP)


def dp_barrier() -> None:
    """Wait for all processes with the same stage."""
    barrier(DP_GROUP)


def allgather(obj: object, group: CommGroup) -> list[object]:
    """The objects of all processes of a group, in the order of their ranks; collective."""
    found: list[object] = [None] * len(_members(group.value))
    dist.all_gather_object(found, obj, group=_process_group(group.value))
    return found


def broadcast(obj: object, group: CommGroup) -> None:
    """Send to all other processes of a group, each of which calls :func:`recv_from`; only the sender calls this."""
    for member in _members(group.value):
        if member != state.groups.rank:
            dist.send_object_list([obj], member, group=state.objects)


def send(obj: object, dest_rank: int, rank_type: RankType) -> None:
    """Send to one process, which calls :func:`recv_from`.

    Args:
        obj: Any object that can be pickled.
        dest_rank: Rank of the receiver.
        rank_type: Kind of group in which that rank is numbered.

    """
    dist.send_object_list([obj], _members(rank_type.value)[dest_rank], group=state.objects)


def recv_from(src_rank: int, rank_type: RankType) -> Any:
    """Receive the object that one process sends by :func:`send` or :func:`broadcast`.

    Args:
        src_rank: Rank of the sender.
        rank_type: Kind of group in which that rank is numbered.

    """
    box: list[object] = [None]
    dist.recv_object_list(box, _members(rank_type.value)[src_rank], group=state.objects)
    return box[0]
