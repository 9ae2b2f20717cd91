# SPDX-License-Identifier: Apache-2.0
"""The default process group of each quorum: recreated in place, and aborted when a rank is lost."""

from __future__ import annotations

import contextlib
import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import _set_pg_timeout

from lightning_sagemaker.collectives import ending, forks
from lightning_sagemaker.collectives.async_max import share_default_group
from lightning_sagemaker.recovery import on_gpu
from lightning_sagemaker.recovery.member import RecoveryError
from lightning_sagemaker.recovery.sockets import open_sockets, shut_down
from lightning_sagemaker.recovery.wire import Info

_TO_MEET = timedelta(seconds=30)
"""Seconds that ranks which were just alive wait for each other."""


class QuorumGroup:
    """The default group of ``torch.distributed``, of the ranks in the quorum.

    Each process serves a store, and a quorum uses that of its first rank, so that no store is lost with one rank.

    Args:
        host: Name or address by which other ranks reach this process.

    """

    def __init__(self, host: str) -> None:
        self._server = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_TO_MEET)
        self.info: Info = {"host": host, "store": self._server.port}
        self._lock = threading.Lock()
        self._before: set[int] | None = None
        share_default_group()
        ending.register()
        forks.guard()
        os.register_at_fork(after_in_child=self._close_copies)

    def form(self, backend: str, quorum: int, rank: int, infos: list[Info]) -> None:
        """Replace the default group by that of a quorum. Collective over its ranks.

        Args:
            backend: As of ``init_process_group``.
            quorum: Its number.
            rank: Rank of this process in it.
            infos: Facts of its ranks in order.

        Raises:
            RuntimeError: If one of them is lost meanwhile.
            RecoveryError: If this version of torch cannot abort a group on GPUs.

        """
        if "nccl" in backend and not on_gpu.can_abort():
            raise RecoveryError(
                f"recovery='in_job' was set for GPUs, and torch {torch.__version__} cannot abort an nccl collective "
                "that a lost"
                " rank does not join. HINT: use torch 2.6 or newer, or recovery='restart'."
            )
        on_gpu.let_survive()
        self.dissolve()
        with self._lock:
            self._before = open_sockets()
        first = infos[0]
        store = dist.TCPStore(first["host"], first["store"], is_master=False, wait_for_workers=False, timeout=_TO_MEET)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(f"quorum-{quorum}", store),
            rank=rank,
            world_size=len(infos),
            timeout=_TO_MEET,  # who waits for another's connection has none yet that could be shut down
        )
        dist.barrier()  # who is missing is missed here, not within the training
        _set_pg_timeout(default_pg_timeout)

    def dissolve(self) -> None:
        """Discard the current group, whatever its state."""
        self.leave()
        with self._lock:
            self._before = None
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    def leave(self) -> None:
        """Abort every collective that this process waits for; called by any thread."""
        with self._lock:
            if self._before is not None:
                # Others may form the next group already, and have connected to this store for it.
                shut_down(open_sockets() - self._before, but_at=self._server.port)
        on_gpu.abort()

    def _close_copies(self) -> None:
        """In a process that was forked: copies would keep the connections open when this rank dies."""
        if self._before is not None:
            for number in open_sockets() - self._before:
                with contextlib.suppress(OSError):
                    os.close(number)
