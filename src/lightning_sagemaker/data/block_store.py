# SPDX-License-Identifier: Apache-2.0
"""Blocks of remote data on a host's disk, in one file that all its processes map: each block is fetched once per host.

The file has a fixed number of slots, so it cannot grow beyond its limit; a table beside it, mapped too, says which block is
in which slot. What is copied out of a slot counts only if the slot was not given to another block meanwhile, which its
generation tells; so nobody has to wait for a reader. Whoever fetches a block holds a file lock, which the kernel releases
when its process is killed.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.data.block_table import BlockTable

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")
Copy = Callable[[Bytes, Integers], T]
"""Takes blocks ``[n, bytes]`` and the number among them of each that was asked for."""

_STRIPES = 256
"""Lock files; blocks share them."""
_AT_ONCE = 8
"""Blocks that a process fetches at the same time."""
_IN_MEMORY = 64
"""Blocks that a process keeps where the disk takes none: a window of them."""
_TRIES = 3
"""To copy from slots that others take away meanwhile, before blocks are kept in memory."""

_log = logging.getLogger(__name__)


class BlockStore:
    """Blocks of one set of data.

    Args:
        folder: On the host's own disk; made if missing. All processes of the host give the same.
        blocks: How many there are.
        block_bytes: Size of the largest.
        limit: Bytes of disk to use at most.
        fetch: The content of a block; called in several threads and processes.

    """

    holds_no_order = True

    def __init__(self, folder: Path, blocks: int, block_bytes: int, limit: int, fetch: Callable[[int], bytes]) -> None:
        self._arguments = (folder, blocks, block_bytes, limit, fetch)
        self._fetch, self._bytes = fetch, block_bytes
        self._slots = max(1, min(blocks, limit // block_bytes))
        self._folder = folder / f"{blocks}-{block_bytes}-{self._slots}"
        self._private: OrderedDict[int, bytes] = OrderedDict()
        self._full = False
        (self._folder / "locks").mkdir(parents=True, exist_ok=True)
        with self._locked("table"):
            self._table = BlockTable(self._folder / "table", blocks, self._slots)
            self._file = os.open(self._folder / "blocks", os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(self._file, self._slots * block_bytes)  # a file with holes: takes what was written
        shape = (self._slots, block_bytes)
        self._arena: Bytes = np.asarray(np.memmap(self._folder / "blocks", np.uint8, "r", shape=shape))

    def __getstate__(self) -> tuple[Any, ...]:
        return self._arguments

    def __setstate__(self, arguments: tuple[Any, ...]) -> None:
        self.__init__(*arguments)  # type: ignore[misc]

    @property
    def counts(self) -> dict[str, int]:
        """Blocks that were fetched on this host since the store was made, and their bytes."""
        return self._table.counts()

    def is_present(self, block: int) -> bool:
        """Whether a block need not be fetched."""
        return bool(self._table.slot_of[block] >= 0) or block in self._private

    def missing(self, blocks: Integers) -> list[int]:
        """Those that must be fetched."""
        absent = blocks[self._table.slot_of[blocks] < 0].tolist()
        return [block for block in absent if block not in self._private]

    def read(self, blocks: Integers, copy: Copy[T]) -> T:
        """Copy something out of blocks; those that are not there are fetched.

        Args:
            blocks: ``[n]``, their numbers, with repetitions.
            copy: Called with all slots, or some blocks, and ``[n]`` numbers of those among them.

        """
        for _ in range(_TRIES):
            slots = self._table.slot_of[blocks].astype(np.int64)
            if (slots < 0).any():
                self.fetch(np.unique(blocks[slots < 0]).tolist())
                slots = self._table.slot_of[blocks].astype(np.int64)
                if (slots < 0).any():
                    break
            before = self._table.generation[slots]
            if not np.array_equal(self._table.slot_of[blocks], slots):
                continue
            found = copy(self._arena, slots)
            if np.array_equal(self._table.generation[slots], before):
                self._table.used[slots] = 1
                return found
        # The disk is full, or so small that others take the slots away before they can be read.
        needed, places = np.unique(blocks, return_inverse=True)
        contents = np.zeros((len(needed), self._bytes), np.uint8)
        for row, content in zip(contents, map(self._from_memory, needed.tolist()), strict=True):
            row[: len(content)] = np.frombuffer(content, np.uint8)
        return copy(contents, places)

    def fetch(self, blocks: Iterable[int]) -> None:
        """Fetch those blocks that are not there, several at once; one that another process fetches is waited for."""
        missing = [block for block in blocks if not self.is_present(block)]
        if len(missing) < 2:
            for block in missing:
                self._fetch_one(block)
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._fetch_one, missing))

    def _fetch_one(self, block: int) -> None:
        with self._locked(str(block % _STRIPES)):
            if self.is_present(block):
                return
            content = self._fetch(block)
            with self._locked("table"):
                slot = self._table.claim(block, self._is_abandoned)
                self._table.count(len(content))
            if slot is None or not self._write(slot, content):
                self._keep(block, content)
                return
            with self._locked("table"):
                self._table.publish(block, slot)

    def _write(self, slot: int, content: bytes) -> bool:
        """Whether there was room on the disk."""
        written = 0
        try:
            while written < len(content):
                place = slot * self._bytes + written
                written += os.pwrite(self._file, memoryview(content)[written:], place)
        except OSError as error:
            if not self._full:
                self._full = True
                _log.warning(
                    "%s takes no more blocks (%s): this process keeps them in memory, and each process fetches its own."
                    " HINT: set data.cache_dir to a larger disk, or lower data.cache_gb.",
                    self._folder,
                    error.strerror,
                )
            with self._locked("table"):
                self._table.release(slot)
            return False
        return True

    def _keep(self, block: int, content: bytes) -> None:
        self._private[block] = content
        while len(self._private) > _IN_MEMORY:
            self._private.popitem(last=False)

    def _from_memory(self, block: int) -> bytes:
        found = self._private.get(block)
        if found is None:
            found = self._fetch(block)
            self._keep(block, found)
        return found

    def _is_abandoned(self, block: int) -> bool:
        """Whether nobody is fetching a block that has a slot but is not in it: its process was killed."""
        file = os.open(self._folder / "locks" / str(block % _STRIPES), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(file)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Alone among all threads and processes of the host: a lock belongs to one opening of its file."""
        file = os.open(self._folder / "locks" / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file open as well
            os.close(file)
