# SPDX-License-Identifier: Apache-2.0
"""Blocks of remote data on a host's disk, in one file that all its processes map: each block is fetched once per host.

The file has a fixed number of slots, so it cannot grow beyond its limit; a table, mapped too, records which block is
in which slot. A copy out of a slot is valid only if the slot was not reassigned meanwhile, as its generation shows; so
no writer has to wait for a reader. The process that fetches a block holds a file lock, which the kernel releases
if it is killed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.data.block_index import RUN, Content
from lightning_sagemaker.data.block_table import BlockTable
from lightning_sagemaker.data.damage import DataReadError

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")
Copy = Callable[[Bytes, Integers], T]
"""Copies from blocks ``[n, bytes]``, given the row of each requested block."""

_STRIPES = 1024
"""Number of lock files, which blocks share."""
_AT_ONCE = 8
"""Number of runs that a process fetches concurrently."""
_IN_MEMORY = 64
"""Number of blocks that a process keeps in memory if the disk is full: a window."""
_TRIES = 3
"""Attempts to copy from slots that other processes reassign meanwhile, before blocks are kept in memory."""

_log = logging.getLogger(__name__)


class Fetch(Protocol):
    """Fetches the blocks of a store from their source."""

    def __call__(self, first: int, count: int, buffer: memoryview) -> list[Content]:
        """Read ``count`` blocks from ``first`` on, at most :data:`~.block_index.RUN`; valid until the buffer is reused."""


class BlockStore:
    """The blocks of one data set.

    Args:
        folder: Folder on the host's own disk, the same for all its processes; created if missing.
        blocks: Number of blocks of the data set.
        block_bytes: Bytes of the largest block.
        limit: Maximum bytes of disk to use.
        fetch: Reads consecutive blocks; called in several threads and processes.

    """

    holds_no_order = True

    def __init__(self, folder: Path, blocks: int, block_bytes: int, limit: int, fetch: Fetch) -> None:
        self._arguments = (folder, blocks, block_bytes, limit, fetch)
        self._fetch, self._bytes = fetch, block_bytes
        self._slots = max(1, min(blocks, limit // block_bytes))
        self._folder = folder / f"{blocks}-{block_bytes}-{self._slots}"
        self._buffers: list[memoryview] = []  # reused: allocating one takes longer than reading into it
        self._private: OrderedDict[int, Bytes] = OrderedDict()
        self._full = False
        self._writing: dict[int, threading.Lock] = {}  # by process, as a lock may be held at a fork
        try:
            self._make_files(blocks)
        except OSError as error:
            raise DataReadError(
                f"{self._folder}, where blocks would be kept, cannot be written ({error.strerror})."
                " HINT: set data.cache_dir to a disk with room."
            ) from error
        shape = (self._slots, block_bytes)
        self._arena: Bytes = np.asarray(np.memmap(self._folder / "blocks", np.uint8, "r", shape=shape))

    def _make_files(self, blocks: int) -> None:
        """Create all files now, as later the disk may be full."""
        locks = self._folder / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        self._locks = str(locks)
        with self._locked("table"):
            for name in {str(block) for block in range(min(blocks, _STRIPES))} - set(os.listdir(locks)):
                (locks / name).touch()
            self._table = BlockTable(self._folder / "table", blocks, self._slots)
            self._file = os.open(self._folder / "blocks", os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(self._file, self._slots * self._bytes)  # sparse: takes only the disk space that was written

    def __getstate__(self) -> tuple[Any, ...]:
        return self._arguments

    def __setstate__(self, arguments: tuple[Any, ...]) -> None:
        self.__init__(*arguments)  # type: ignore[misc]

    @property
    def counts(self) -> dict[str, int]:
        """Blocks that were fetched on this host since the store was made, their bytes, and the requests for them."""
        return self._table.counts()

    def is_present(self, block: int) -> bool:
        """Whether a block is present."""
        return bool(self._table.slot_of[block] >= 0) or block in self._private

    def missing(self, blocks: Integers) -> list[int]:
        """The blocks that must be fetched."""
        absent = blocks[self._table.slot_of[blocks] < 0].tolist()
        return [block for block in absent if block not in self._private]

    def read(self, blocks: Integers, copy: Copy[T]) -> T:
        """Copy from blocks; missing blocks are fetched.

        Args:
            blocks: Indices of the blocks, ``[n]``, possibly repeated.
            copy: Called with an array of slots or blocks, and the row of each requested block in it, ``[n]``.

        """
        for _ in range(_TRIES):
            slots = self._table.slot_of[blocks].astype(np.int64)
            if (slots < 0).any():
                self.fetch(np.unique(blocks[slots < 0]).tolist())
                slots = self._table.slot_of[blocks].astype(np.int64)
                if (slots < 0).any():
                    break
            before = self._table.generation[slots]
            if not (self._table.slot_of[blocks] == slots).all():
                continue
            found = copy(self._arena, slots)
            if (self._table.generation[slots] == before).all():
                self._table.used[slots] = 1
                return found
        # The disk is full, or so small that slots are reassigned before they can be read.
        needed, places = np.unique(blocks, return_inverse=True)
        contents = np.zeros((len(needed), self._bytes), np.uint8)
        for row, content in zip(contents, map(self._from_memory, needed.tolist()), strict=True):
            row[:] = content
        return copy(contents, places)

    def fetch(self, blocks: Iterable[int]) -> None:
        """Fetch missing blocks, several concurrently; wait for those that another process fetches.

        Args:
            blocks: Indices of the blocks, ascending.

        """
        missing = runs_of(block for block in blocks if not self.is_present(block))
        if len(missing) < 2:
            for run in missing:
                self.fetch_run(run)
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self.fetch_run, missing))

    def fetch_run(self, run: range) -> None:
        """As :meth:`fetch`, for consecutive blocks, at most :data:`~.block_index.RUN`."""
        with ExitStack() as locks:
            for stripe in sorted({block % _STRIPES for block in run}):  # the same order in all processes: no deadlock
                locks.enter_context(self._locked(str(stripe)))
            for part in runs_of(block for block in run if not self.is_present(block)):
                with self._buffer() as buffer:
                    self._put(part, self._fetch(part.start, len(part), buffer[: len(part) * self._bytes]))

    def _put(self, blocks: range, contents: list[Content]) -> None:
        with self._locked("table"):
            slots = [self._table.claim(block, self._is_abandoned) for block in blocks]
            for content in contents:
                self._table.count(content.size, content.requests)
        written: list[tuple[int, int]] = []
        for block, slot, content in zip(blocks, slots, contents, strict=True):
            if slot is not None and self._write(slot, content):
                written.append((block, slot))
            else:
                self._keep(block, content)
        with self._locked("table"):
            for block, slot in written:
                self._table.publish(block, slot)

    def _write(self, slot: int, content: Content) -> bool:
        """Write a block into a slot; returns whether there was space on the disk."""
        try:
            for offset, part in content.parts:
                written = 0
                # Without this lock writers would spin on the kernel's lock of the file, on CPU cores that others need.
                with self._writing.setdefault(os.getpid(), threading.Lock()):
                    while written < len(part):
                        written += os.pwrite(self._file, part[written:], slot * self._bytes + offset + written)
        except OSError as error:
            if not self._full:
                self._full = True
                _log.warning(
                    "%s cannot store more blocks (%s): each process fetches its own and keeps them in memory."
                    " HINT: set data.cache_dir to a folder on a larger disk, or lower data.cache_gb.",
                    self._folder,
                    error.strerror,
                )
            with self._locked("table"):
                self._table.release(slot)
            return False
        return True

    def _keep(self, block: int, content: Content) -> Bytes:
        kept = np.zeros(self._bytes, np.uint8)
        for offset, part in content.parts:
            kept[offset : offset + len(part)] = part
        self._private[block] = kept
        while len(self._private) > _IN_MEMORY:
            self._private.popitem(last=False)
        return kept

    def _from_memory(self, block: int) -> Bytes:
        found = self._private.get(block)
        if found is None:
            with self._buffer() as buffer:
                (content,) = self._fetch(block, 1, buffer[: self._bytes])
                found = self._keep(block, content)
        return found

    @contextmanager
    def _buffer(self) -> Iterator[memoryview]:
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = memoryview(bytearray(RUN * self._bytes))
        try:
            yield buffer
        finally:
            self._buffers.append(buffer)

    def _is_abandoned(self, block: int) -> bool:
        """Whether a block has a slot but is not in it, and no process fetches it: the process that did was killed."""
        file = os.open(f"{self._locks}/{block % _STRIPES}", os.O_RDWR | os.O_CREAT, 0o600)
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
        """Context with an exclusive lock among all threads and processes of the host, on a newly opened lock file."""
        file = os.open(f"{self._locks}/{name}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # explicitly, as a child that was forked meanwhile has the file open, too
            os.close(file)


def runs_of(blocks: Iterable[int]) -> list[range]:
    """Split ascending indices into contiguous ranges of at most :data:`~.block_index.RUN`."""
    found: list[range] = []
    for block in blocks:
        if found and block == found[-1].stop and len(found[-1]) < RUN:
            found[-1] = range(found[-1].start, block + 1)
        else:
            found.append(range(block, block + 1))
    return found
