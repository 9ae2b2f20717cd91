# SPDX-License-Identifier: Apache-2.0
"""Memory that loader workers share with the training process, for the arrays of a message.

A pipe copies a message 64 KB at a time and wakes both sides for each; new shared memory, as torch creates for each tensor,
has its pages mapped one by one on both sides. This memory is mapped once and reused.

Forked workers inherit it. Others get None instead, and send their arrays within the message. It is not in ``/dev/shm``,
which is small in many containers.
"""

from __future__ import annotations

import itertools
import mmap
import pickle
from collections.abc import Callable
from typing import TypeVar, cast
from weakref import WeakValueDictionary

T = TypeVar("T")

_ALL: WeakValueDictionary[int, Slots] = WeakValueDictionary()
"""Number -> slots; the number is the same in a forked worker."""
_numbers = itertools.count()


class Slots:
    """The slots of each worker, which the worker uses in turn.

    Args:
        workers: Number of workers.
        each: Maximum messages of a worker in transit.
        size: Bytes of a slot.

    """

    def __init__(self, workers: int, each: int, size: int) -> None:
        self._each, self._size = each, size
        self._busy = mmap.mmap(-1, workers * each)
        self._memory = memoryview(mmap.mmap(-1, workers * each * size))
        self._written = 0
        self._number = next(_numbers)
        _ALL[self._number] = self

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _none, ()  # a worker that is not forked has no access to the memory

    def put(self, content: T, worker: int) -> T:
        """Called in a worker: write the arrays of ``content`` into its next slot.

        Args:
            content: Must copy its arrays when it is unpickled, as the slot is reused then.
            worker: Index of the worker.

        Returns:
            The object to send, which is unpickled as ``content``: itself if the slot is too small, or not read yet.

        """
        slot = worker * self._each + self._written % self._each
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
        parts = [buffer.raw() for buffer in buffers]
        if self._busy[slot] or sum(map(len, parts)) > self._size:
            return content
        self._written += 1
        at = slot * self._size
        for part in parts:
            self._memory[at : at + len(part)] = part
            at += len(part)
        self._busy[slot] = 1
        return cast("T", _Sent(self._number, slot, head, list(map(len, parts))))

    def take(self, slot: int, head: bytes, lengths: list[int]) -> object:
        """Called in the training process: read the content of a slot."""
        ends = itertools.accumulate(lengths, initial=slot * self._size)
        parts = [self._memory[begin:end] for begin, end in itertools.pairwise(ends)]
        content: object = pickle.loads(head, buffers=parts)
        self._busy[slot] = 0
        return content


def _none() -> None:
    """Unpickles as None in place of slots."""


class _Sent:
    """A message whose arrays are in a slot."""

    def __init__(self, *place: object) -> None:
        self._place = place

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _take, self._place


def _take(number: int, slot: int, head: bytes, lengths: list[int]) -> object:
    slots = _ALL.get(number)
    return [] if slots is None else slots.take(slot, head, lengths)  # without slots nobody waits for it
