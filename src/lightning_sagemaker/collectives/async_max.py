# SPDX-License-Identifier: Apache-2.0
"""Asynchronous all-reduce (maximum) of a few numbers: started at one step, its result read at a later one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class AsyncMaxReduce:
    """The maximum of each value over all processes: an all-reduce started at one step and read at a later one.

    It is asynchronous and runs on the CPU, so it waits neither for a GPU nor, until the result is read, for another
    process. All processes call the methods in the same order.

    Args:
        is_alone: Whether there is no other process.
        group: gloo process group; None for the default group, whichever it is at the time.

    """

    uses_default_group = False
    """Set in a job whose default group is recreated when ranks change: then a group of its own would be lost."""

    def __init__(self, is_alone: bool = True, group: ProcessGroup | None = None) -> None:
        self.is_alone, self._group = is_alone, group
        self._pending: tuple[torch.Tensor, dist.Work] | list[float] | None = None
        self._start_seconds = 0.0
        # Kept forever: if gloo's thread dropped the last reference it would take the GIL, and a process that is
        # forked at that moment, such as a loader's worker, would never get it.
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.seconds = 0.0
        """Seconds that this process spent on starting the last all-reduce and on waiting for its result."""

    @classmethod
    def of_all(cls) -> AsyncMaxReduce:
        """An instance over all processes, with a group of its own. Collective if there is more than one process."""
        if cls.uses_default_group:
            return cls(is_alone=False)
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        return cls() if alone else cls(is_alone=False, group=dist.new_group(backend="gloo"))

    def discard(self) -> None:
        """Drop the pending all-reduce, as when one of its ranks is gone."""
        self._pending = None

    def start(self, values: Sequence[float]) -> None:
        """Start the all-reduce of ``values``, of the same number on all processes."""
        if self.is_alone:
            self._pending = [float(value) for value in values]
            return
        begin = time.perf_counter()
        tensor = self._tensor(len(values))
        tensor.copy_(torch.tensor(values, dtype=torch.float64))
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, self._group, async_op=True)
        self._pending = (tensor, work)
        self._start_seconds = time.perf_counter() - begin

    def _tensor(self, size: int) -> torch.Tensor:
        """One of two buffers in turn: the other may still be in use by the previous all-reduce."""
        if size not in self._tensors:
            self._tensors[size] = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        self._tensors[size] = self._tensors[size][::-1]
        return self._tensors[size][0]

    def wait(self) -> list[float] | None:
        """Wait for the pending all-reduce and return the maximums; None if none is pending."""
        if self._pending is None:
            return None
        begin = time.perf_counter()
        pending, self._pending = self._pending, None
        if isinstance(pending, list):
            return pending
        values, work = pending
        work.wait()
        found: list[float] = values.tolist()
        self.seconds = self._start_seconds + time.perf_counter() - begin
        return found

    def clock_spread(self) -> float:
        """The largest difference between two processes' clocks, in seconds. Collective, and waits for all."""
        self.start([0.0])
        self.wait()  # a barrier
        now = time.time()
        self.start([now, -now])
        found = self.wait()
        assert found is not None
        return found[0] + found[1]
