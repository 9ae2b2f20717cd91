# SPDX-License-Identifier: Apache-2.0
"""Object collectives; and actions of one process for all, such as writing a file, that fail on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


T = TypeVar("T")


def of_all(own: T, world_size: int) -> list[T]:
    """The values of all processes, by rank. Collective."""
    found = [own] * world_size
    if world_size > 1:
        dist.all_gather_object(found, own)
    return found


def from_first(value: T) -> T:
    """The first process's ``value``, on all of them. Collective, if there is more than one."""
    box = [value]
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast_object_list(box, 0)
    return box[0]


def run_and_sync_errors(action: Callable[[], None], group: ProcessGroup | None = None) -> None:
    """Run ``action`` and synchronize; errors of one process are raised on all. Collective over ``group``.

    Raises:
        RuntimeError: On all processes, with the failures of each, if it fails on one.

    """
    failure: str | None = None
    cause: Exception | None = None
    try:
        action()
    except Exception as error:
        failure, cause = f"{type(error).__name__}: {error}", error
    failures: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(failures, failure, group=group)
    found = [f"rank {rank}: {text}" for rank, text in enumerate(failures) if text is not None]
    if found:
        raise RuntimeError("; ".join(found)) from cause
