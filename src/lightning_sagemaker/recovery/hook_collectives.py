# SPDX-License-Identifier: Apache-2.0
"""Predicts collectives in hooks of a batch's end: a rank that waits in one needs a state that was saved before it.

A script may gather or average something there, as a metric's ``compute`` does. Saving the state twice in each step would
slow down a script that does not, so the steps at which hooks communicate are predicted from the group's counts.
"""

from __future__ import annotations

import contextlib
import math
from typing import Protocol, cast

import torch
import torch.distributed as dist


class CountingBackend(Protocol):
    """A method of a backend that torch's stubs omit."""

    def _get_sequence_number_for_group(self) -> int: ...


class HookCollectives:
    """Predicts at which steps hooks communicate, from the steps so far.

    Args:
        device: Device of this process. Collectives of its backend and of the CPU's are counted.

    """

    def __init__(self, device: torch.device) -> None:
        self._devices = {torch.device("cpu"), device}
        self._before, self._period = 0, 0

    def begin(self) -> None:
        """Start counting before the hooks of a step."""
        self._before = self._count()

    def end(self, step: int) -> None:
        """Record whether the hooks of ``step``, which have ended, have communicated."""
        if self._count() != self._before:
            self._period = math.gcd(self._period, step)

    def are_next(self, step: int) -> bool:
        """Whether hooks of ``step`` are expected to communicate."""
        return self._period > 0 and step % self._period == 0

    def _count(self) -> int:
        """Number of collectives of the default group so far."""
        group = cast(dist.ProcessGroup, dist.group.WORLD)
        backends = set()
        for device in self._devices:
            with contextlib.suppress(RuntimeError):  # the group has no backend for this device
                backends.add(cast(CountingBackend, group._get_backend(device)))
        return sum(backend._get_sequence_number_for_group() for backend in backends)
