# SPDX-License-Identifier: Apache-2.0
"""The default process group of each quorum: recreated in place, and aborted when a rank is lost."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from lightning_sagemaker._compat.group_timeout import set_timeout
from lightning_sagemaker.collectives import clean_exit, forks
from lightning_sagemaker.collectives.async_max import AsyncMaxReduce
from lightning_sagemaker.recovery import on_gpu
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.sockets import ShutDown, Socket, open_sockets
from lightning_sagemaker.recovery.stuck import exit_if_stuck
from lightning_sagemaker.recovery.wire import Info

_TO_MEET = 5.0
"""Seconds that live ranks wait for each other's connections: gloo waits for a rank that dies before it has
connected, and there is no connection to shut down. Doubled after each failure without a loss, for slow machines."""
_MOST = 40.0
"""Maximum of these seconds, however many attempts have failed."""
_PER_RANK = 0.1
"""Additional seconds per rank, as each connects to all others."""
_TO_BEGIN = timedelta(seconds=30)
"""Time limit of the first collective, in which nccl initializes; it is aborted if a rank is lost."""
_AGAIN = 0.05
"""Seconds between two checks for new connections of a group that is being formed."""


class QuorumGroup:
    """Manages the default process group, which consists of the ranks of the quorum.

    Each process serves a store, and a quorum uses that of its first rank, so that no store is lost with one rank.

    Args:
        host: Name or address by which other ranks reach this process.

    Attributes:
        store: The store that this process serves.
        info: Address of the store, for other ranks.

    """

    def __init__(self, host: str) -> None:
        self.store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_TO_BEGIN)
        self._patience = _TO_MEET
        self.info: Info = {"host": host, "store": self.store.port}
        self._lock = threading.Lock()
        self._before: set[Socket] | None = None
        self._shut = ShutDown()
        self._forming: object | None = None
        self._number = 0
        AsyncMaxReduce.uses_default_group = True
        clean_exit.register()
        forks.guard()
        os.register_at_fork(after_in_child=self._close_copies)

    def form(
        self,
        backend: str,
        quorum: int,
        rank: int,
        infos: list[Info],
        is_lost: Callable[[], bool] = lambda: False,
        subgroups: Callable[[timedelta], None] = lambda _: None,
    ) -> None:
        """Replace the default group by that of a quorum. Collective over its ranks.

        Args:
            backend: Backend as for ``init_process_group``.
            quorum: Number of the quorum.
            rank: Rank of this process in the quorum.
            infos: Information about the quorum's ranks, in order.
            is_lost: Whether one of these ranks has been lost meanwhile; true before :meth:`leave` is called for it.
            subgroups: Creates groups of some of these ranks, with a timeout. Collective.

        Raises:
            RuntimeError: If one of these ranks is lost meanwhile.
            RecoveryError: If this version of torch cannot abort a group on GPUs.

        """
        if "nccl" in backend and not on_gpu.can_abort():
            raise RecoveryError(
                f"recovery='in_job' was set for GPUs, and torch {torch.__version__} cannot abort an nccl collective that a"
                " lost rank does not join. HINT: use torch 2.6 or newer, or recovery='restart'."
            )
        on_gpu.let_survive()
        self.dissolve()
        with self._lock:
            self._before, self._forming = open_sockets(), object()
        patience = self._patience + _PER_RANK * len(infos)
        try:
            store = _store_of(infos[0], patience, is_lost)
            dist.init_process_group(
                backend,
                store=dist.PrefixStore(f"quorum-{quorum}", store),
                rank=rank,
                world_size=len(infos),
                timeout=timedelta(seconds=patience),
            )
            set_timeout(_TO_BEGIN)
            dist.barrier()  # fails here, and not within the training, if a rank is missing
            subgroups(timedelta(seconds=patience))
            self._patience = _TO_MEET
        except RuntimeError:
            if not is_lost():
                self._patience = min(2 * self._patience, _MOST)
            raise
        finally:
            with self._lock:
                self._forming = None
        set_timeout(default_pg_timeout)

    def dissolve(self) -> None:
        """Discard the current group, whatever its state."""
        self._abort()
        with self._lock:
            self._before = None
        if dist.is_initialized():
            clean_exit.let_threads_finish()
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()  # waits for its threads, one of which may hang in a collective
        with self._lock:
            self._number += 1
        self._shut.close()

    def leave(self) -> None:
        """Abort every collective that this process waits for, and exit if one does not end. Thread-safe."""
        number = self._number
        self._abort()
        if self._forming is None:  # forming a group has a time limit of its own
            exit_if_stuck(lambda: self._number > number)

    def _abort(self) -> None:
        with self._lock:
            self._shut_down()
            forming = self._forming
        if forming is not None:  # it may be about to wait on a connection that is not open yet
            threading.Thread(target=self._keep_leaving, args=(forming,), name="leave", daemon=True).start()
        on_gpu.abort()

    def _keep_leaving(self, forming: object) -> None:
        while True:
            time.sleep(_AGAIN)
            with self._lock:
                if self._forming is not forming:
                    return
                self._shut_down()

    def _shut_down(self) -> None:
        if self._before is not None:
            # Other ranks may already be forming the next group, with connections to this store.
            self._shut.add(open_sockets() - self._before, but_at=self.store.port)

    def _close_copies(self) -> None:
        """Close the connections in a forked process, whose copies would keep them open when this rank dies."""
        self._shut.close()
        if self._before is not None:
            for number, _ in open_sockets() - self._before:
                with contextlib.suppress(OSError):
                    os.close(number)


def _store_of(first: Info, patience: float, is_lost: Callable[[], bool]) -> dist.TCPStore:
    """Connect to the store of a quorum's first rank in a thread: if it is lost, torch keeps retrying uninterruptibly."""
    made: queue.SimpleQueue[dist.TCPStore | RuntimeError] = queue.SimpleQueue()
    timeout = timedelta(seconds=patience)

    def make() -> None:
        try:
            store = dist.TCPStore(first["host"], first["store"], None, False, timeout, wait_for_workers=False)
        except RuntimeError as error:
            made.put(error)
        else:
            made.put(store)

    threading.Thread(target=make, name="store", daemon=True).start()
    found = None
    while found is None and not is_lost():
        with contextlib.suppress(queue.Empty):
            found = made.get(timeout=_AGAIN)
    if isinstance(found, RuntimeError):
        raise found
    if found is None or is_lost():
        raise RuntimeError("Connection to a quorum that has lost a rank")
    return found
