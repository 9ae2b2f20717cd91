# SPDX-License-Identifier: Apache-2.0
"""Which block of a :class:`~.block_store.BlockStore` is in which slot: a file that all processes of a host map."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

_HEADER = 8
_VERSION, _BOOT, _HAND, _FETCHED, _BYTES, _REQUESTS = range(6)
"""Indices in the header."""
_FORMAT = 1


class BlockTable:
    """Maps blocks to slots. Reading needs no lock; methods that change the table require that its lock is held.

    Args:
        path: Path of the file; created if missing. A file from before the last reboot is emptied, as cached writes
            may not have reached the disk.
        blocks: Number of blocks of the data set.
        slots: Number of slots of the store.

    Attributes:
        slot_of: Slot of each block, ``[blocks]``; -1 if it has none.
        generation: Counter of each slot, ``[slots]``, which changes before another block is written into it.
        used: Flag of each slot, ``[slots]``: 1 if it was read since the clock hand passed (CLOCK replacement).

    """

    def __init__(self, path: Path, blocks: int, slots: int) -> None:
        sizes = (8 * _HEADER, 8 * slots, 4 * blocks, 4 * slots, slots)
        begins = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
        is_new = not path.exists() or path.stat().st_size != begins[-1]
        if is_new:
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            # Written as zeros, not sparse: on a full disk, writing to a mapped hole would kill the process.
            temporary.write_bytes(bytes(begins[-1]))
            temporary.replace(path)
        # Plain arrays over the maps: reading a few entries of a memmap is several times slower.
        self._header = np.asarray(np.memmap(path, np.int64, "r+", begins[0], (_HEADER,)))
        self._owner = np.asarray(np.memmap(path, np.int64, "r+", begins[1], (slots,)))
        self.slot_of = np.asarray(np.memmap(path, np.int32, "r+", begins[2], (blocks,)))
        self.generation = np.asarray(np.memmap(path, np.uint32, "r+", begins[3], (slots,)))
        self.used = np.asarray(np.memmap(path, np.uint8, "r+", begins[4], (slots,)))
        boot = _boot()
        if is_new or self._header[_VERSION] != _FORMAT or self._header[_BOOT] != boot:
            self.slot_of[:] = -1
            self._owner[:] = -1
            self.generation[:] += np.uint32(1)
            self._header[:] = [_FORMAT, boot, *[0] * (_HEADER - 2)]

    def claim(self, block: int, is_abandoned: Callable[[int], bool]) -> int | None:
        """Assign a slot to a block: the next one that was not read recently; None if all are being written.

        Args:
            block: Block that is not in a slot.
            is_abandoned: Whether a block has a slot, is not in it, and no process is writing it.

        """
        slots = len(self._owner)
        for _ in range(2 * slots):
            slot = int(self._header[_HAND])
            self._header[_HAND] = (slot + 1) % slots
            owner = int(self._owner[slot])
            if owner >= 0:
                if self.slot_of[owner] != slot:
                    if owner != block and not is_abandoned(owner):
                        continue
                elif self.used[slot]:
                    self.used[slot] = 0
                    continue
                else:
                    self.slot_of[owner] = -1
            self._owner[slot] = block
            self.generation[slot] += np.uint32(1)
            self.used[slot] = 1
            return slot
        return None

    def publish(self, block: int, slot: int) -> None:
        """Record that a block has been written into its slot."""
        self.slot_of[block] = slot

    def release(self, slot: int) -> None:
        """Free a slot, as its block could not be written."""
        self._owner[slot] = -1

    def count(self, size: int, requests: int) -> None:
        """Count a fetched block of ``size`` bytes, and its requests."""
        self._header[_FETCHED] += 1
        self._header[_BYTES] += size
        self._header[_REQUESTS] += requests

    def counts(self) -> dict[str, int]:
        """Blocks that were fetched, their bytes, and the requests for them."""
        places = {"blocks": _FETCHED, "bytes": _BYTES, "requests": _REQUESTS}
        return {name: int(self._header[place]) for name, place in places.items()}


def _boot() -> int:
    """An id that changes with each boot of the machine."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # not Linux: an existing store is not reused
        text = str(os.getppid())
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
