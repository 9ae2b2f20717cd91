# SPDX-License-Identifier: Apache-2.0
"""Detects and reports a frozen rank, long before a collective times out."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

import torch.distributed as dist

from lightning_sagemaker._compat.store import own_connection
from lightning_sagemaker._lightning import Callback
from lightning_sagemaker.callbacks.copied_by_arguments import CopiedByArguments
from lightning_sagemaker.callbacks.loader_watch import LoaderWatch
from lightning_sagemaker.callbacks.places import job_of
from lightning_sagemaker.events import Event
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.job.failure import write_failure

if TYPE_CHECKING:
    from lightning_sagemaker._types import LightningModule, Trainer


_KEY = "lightning_sagemaker/heartbeat"
_DONE = b"done"


class RankMissing(RuntimeError):
    """A rank has sent no heartbeat."""


class Heartbeat(CopiedByArguments, Callback):
    """Exits this process when the next rank has sent no heartbeat for a while, and reports that rank.

    If a process is killed, its connections break, which the others notice at once. If it is frozen, or its network is
    cut, the others wait in a collective for half an hour, and their error does not say which rank is missing. Here a
    thread of each rank writes a heartbeat to the rendezvous store, and checks the next rank's, on its own connection.

    A rank that is alive but waits that long for the next batch of its data loader logs that, and does not exit.

    Args:
        every: Seconds between heartbeats.
        patience: Heartbeat timeout in seconds. Must be long enough for code that holds the GIL, such as a slow
            extension.

    """

    def __init__(self, every: float = 2.0, patience: float = 300.0) -> None:
        self._every, self._patience = every, patience
        self._over = Event()
        self._threads: list[threading.Thread] = []
        self._received_at = 0.0
        self._requested_at: float | None = None
        self._loader = LoaderWatch(0, patience)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start the threads. Collective over all ranks."""
        if self._threads or not dist.is_initialized() or dist.get_world_size() == 1:
            return
        rank = dist.get_rank()
        store = own_connection(_KEY)  # a collective must not wait for this connection
        store.set(f"{_KEY}/{rank}", "0")
        dist.barrier()
        self._over.clear()
        self._received_at = time.monotonic()
        self._loader = LoaderWatch(rank, self._patience)
        job = job_of(trainer)
        next_rank = (rank + 1) % dist.get_world_size()
        self._threads = [
            threading.Thread(target=self._beat, args=(store, rank, next_rank), name="heartbeat", daemon=True),
            threading.Thread(target=self._watch, args=(rank, next_rank, job), name="heartbeat-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def on_train_batch_start(self, *_: object) -> None:
        """Record that a batch has arrived."""
        self._loader.next_batch()

    def on_validation_batch_start(self, *_: object) -> None:
        """As in training."""
        self._loader.next_batch()

    def on_test_batch_start(self, *_: object) -> None:
        """As in training."""
        self._loader.next_batch()

    def on_predict_batch_start(self, *_: object) -> None:
        """As in training."""
        self._loader.next_batch()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop the threads; the others no longer expect heartbeats."""
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """As :meth:`teardown`, which is not called then."""
        self._stop()

    def _stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=self._every + 1)
        self._threads = []

    def _beat(self, store: dist.Store, rank: int, other: int) -> None:
        """Send heartbeats, and check the next rank's."""
        seen, count = b"", 0
        while not self._over.wait(self._every):
            count += 1
            try:
                self._requested_at = time.monotonic()
                store.set(f"{_KEY}/{rank}", str(count))
                found = store.get(f"{_KEY}/{other}")
                self._requested_at = None
            except RuntimeError:
                continue
            if found != seen or found == _DONE:
                seen, self._received_at = found, time.monotonic()
        with contextlib.suppress(RuntimeError):
            store.set(f"{_KEY}/{rank}", _DONE.decode())

    def _watch(self, rank: int, other: int, job: SageMakerJob) -> None:
        """Check the timeout, in a separate thread, as the other one may be waiting for the store."""
        while not self._over.wait(self._every):
            self._loader.look()
            now = time.monotonic()
            if now - self._received_at > self._patience:
                # Rank zero serves the store: if it is frozen, a call of the other thread does not return.
                no_answer = self._requested_at is not None and now - self._requested_at > self._every
                _end(rank, 0 if no_answer else other, self._patience, job)


def _end(rank: int, other: int, patience: float, job: SageMakerJob) -> None:
    error = RankMissing(
        f"rank {other} has sent no heartbeat for {patience:g} s, so rank {rank} exits. HINT: look at that rank's last"
        " lines and at its host's network and memory."
    )
    if job.in_container:
        write_failure(job.failure_file, error, rank)
    sys.stderr.write(f"lightning-sagemaker: {error}\n")
    sys.stderr.flush()
    os._exit(1)
