# SPDX-License-Identifier: Apache-2.0
"""Object collectives; and running an action, such as writing a file, so that one process's error is raised on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


T = TypeVar("T")


def of_all(own: T, world_size: int) -> list[T]:
    """All-gather one value of each process, by rank. Collective."""
    values = [own] * world_size
    if world_size > 1:
        dist.all_gather_object(values, own)
    return values


def from_first(value: T) -> T:
    """Broadcast rank 0's ``value``. Collective if there is more than one process."""
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
    messages = [f"rank {rank}: {text}" for rank, text in enumerate(failures) if text is not None]
    if messages:
        raise RuntimeError("; ".join(messages)) from cause
