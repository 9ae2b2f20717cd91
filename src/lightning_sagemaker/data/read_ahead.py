# SPDX-License-Identifier: Apache-2.0
"""Prefetches the blocks of the following batches, in threads, during the current step."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from queue import SimpleQueue

import numpy as np

from lightning_sagemaker.data.block_store import BlockStore, Integers, runs_of

_THREADS = 8
_AT_ONCE = 16
"""Number of batches whose blocks are looked up together, which costs little more than for one."""

_log = logging.getLogger(__name__)


class ReadAhead:
    """Forwards batches, and prefetches the blocks of the following ones. The order is known, so prefetching is exact.

    Args:
        store: Store of the blocks.
        blocks_of: The blocks of some batches' samples, ascending.
        batches: Number of batches to look ahead.

    """

    holds_no_order = True

    def __init__(self, store: BlockStore, blocks_of: Callable[[Integers], Integers], batches: int) -> None:
        self._store, self._blocks_of, self._batches = store, blocks_of, max(1, batches)
        self._process: int | None = None

    def __call__(self, batches: Iterator[Integers]) -> Iterator[Integers]:
        """Yield the same batches."""
        self._begin()
        following: deque[Integers] = deque()
        at_once = max(1, min(_AT_ONCE, self._batches // 8))
        while True:
            while len(following) <= self._batches and (more := list(islice(batches, at_once))):
                self._want(np.concatenate(more))
                following += more
            if not following:
                return
            yield following.popleft()

    def _begin(self) -> None:
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._queue: SimpleQueue[range] = SimpleQueue()
        self._queued: set[int] = set()
        for _ in range(_THREADS):
            # Daemon threads: an exiting process must not wait for blocks that nobody will read.
            threading.Thread(target=self._work, name="read-ahead", daemon=True).start()

    def _want(self, draws: Integers) -> None:
        wanted = [block for block in self._store.missing(self._blocks_of(draws)) if block not in self._queued]
        self._queued.update(wanted)
        for run in runs_of(wanted):
            self._queue.put(run)

    def _work(self) -> None:
        while True:
            run = self._queue.get()
            try:
                self._store.fetch_run(run)
            except Exception as error:  # the reader of the block retries, and raises
                _log.debug("blocks %s could not be prefetched: %s", run, error)
            finally:
                self._queued.difference_update(run)
