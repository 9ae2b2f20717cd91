# SPDX-License-Identifier: Apache-2.0
"""What one process knows becomes known to all, at the same step and without waiting."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class _Default(Enum):
    """Stands for the default group, whichever it is at the time."""

    GROUP = 0


_shared = False


def share_default_group(shares: bool = True) -> None:
    """Use the default group, which is recreated when ranks change; another one would be lost."""
    global _shared
    _shared = shares


class AsyncMaxReduce:
    """Largest values over all processes, asked for at one step and read at a later one.

    The messages are asynchronous and use the CPU, so no GPU and no other process is waited for. All
    processes call the methods in the same order.

    Args:
        group: Process group of gloo; None where there is one process only.

    """

    def __init__(self, group: ProcessGroup | _Default | None) -> None:
        self._group = group
        self._asked: tuple[torch.Tensor, dist.Work] | list[float] | None = None
        self._asking = 0.0
        # Never given up: if gloo's thread dropped the last reference it would take Python's lock, and a process that is
        # forked at that moment, such as a loader's, would never get it.
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.seconds = 0.0
        """What the last question cost this process, from asking to having read."""

    @classmethod
    def of_all(cls) -> AsyncMaxReduce:
        """Among all processes. Collective, if there is more than one."""
        if _shared:
            return cls(_Default.GROUP)
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        return cls(None if alone else dist.new_group(backend="gloo"))

    def forget(self) -> None:
        """Leave what was asked unanswered, as when a rank that was asked is gone."""
        self._asked = None

    @property
    def is_alone(self) -> bool:
        """Whether nobody else is asked."""
        return self._group is None

    def ask(self, values: Sequence[float]) -> None:
        """Start finding the largest of each of ``values``."""
        if self._group is None:
            self._asked = [float(value) for value in values]
            return
        begin = time.perf_counter()
        tensor = self._tensor(len(values))
        tensor.copy_(torch.tensor(values, dtype=torch.float64))
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, self._asks, async_op=True)
        self._asked = (tensor, work)
        self._asking = time.perf_counter() - begin

    @property
    def _asks(self) -> ProcessGroup | None:
        return None if isinstance(self._group, _Default) else self._group

    def _tensor(self, size: int) -> torch.Tensor:
        """One of two in turn: the other's message may still be on its way."""
        if size not in self._tensors:
            self._tensors[size] = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        self._tensors[size] = self._tensors[size][::-1]
        return self._tensors[size][0]

    def read(self) -> list[float] | None:
        """What was found for the last question; None if there was none."""
        if self._asked is None:
            return None
        begin = time.perf_counter()
        asked, self._asked = self._asked, None
        if isinstance(asked, list):
            return asked
        values, work = asked
        work.wait()
        found: list[float] = values.tolist()
        self.seconds = self._asking + time.perf_counter() - begin
        return found

    def clock_spread(self) -> float:
        """Seconds by which the clocks of all processes differ at most. Collective, and waits for all."""
        self.ask([0.0])
        self.read()  # all are here now
        now = time.time()
        self.ask([now, -now])
        found = self.read()
        assert found is not None
        return found[0] + found[1]
