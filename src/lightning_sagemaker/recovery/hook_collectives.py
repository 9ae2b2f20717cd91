# SPDX-License-Identifier: Apache-2.0
"""Collectives that hooks of a batch's end call: a rank that waits in one needs a state that was saved before it.

A script may gather or average something there, as a metric's ``compute`` does. Saving the state twice in each step would
slow down a script that does not, so the steps at which hooks communicate are learned, from the group's own counts.
"""

from __future__ import annotations

import contextlib
import math
from typing import Protocol, cast

import torch
import torch.distributed as dist


class CountingBackend(Protocol):
    """What torch's stubs leave out of a backend."""

    def _get_sequence_number_for_group(self) -> int: ...


class HookCollectives:
    """At which steps hooks communicate, as far as they have done it until now.

    Args:
        device: Device of this process. Collectives of its backend are counted, and those of the CPU's.

    """

    def __init__(self, device: torch.device) -> None:
        self._devices = {torch.device("cpu"), device}
        self._before, self._period = 0, 0

    def begin(self) -> None:
        """Weights change next, then hooks are called."""
        self._before = self._count()

    def end(self, step: int) -> None:
        """The hooks of this step are over."""
        if self._count() != self._before:
            self._period = math.gcd(self._period, step)

    def are_next(self, step: int) -> bool:
        """Whether hooks of this step are expected to communicate."""
        return self._period > 0 and step % self._period == 0

    def _count(self) -> int:
        """Collectives of the default group so far."""
        group = cast(dist.ProcessGroup, dist.group.WORLD)
        backends = set()
        for device in self._devices:
            with contextlib.suppress(RuntimeError):  # the group has no backend for it
                backends.add(cast(CountingBackend, group._get_backend(device)))
        return sum(backend._get_sequence_number_for_group() for backend in backends)
