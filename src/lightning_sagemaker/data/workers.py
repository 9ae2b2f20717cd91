# SPDX-License-Identifier: Apache-2.0
"""Loader workers exit only when the training process makes them: not on a stop signal, and then at once.

torchrun, a scheduler and Ctrl-C send their signal to all processes of a group, the workers included. Without its
workers the training process cannot complete the step after which it would write its checkpoint. So workers ignore such
signals. When the training process ends, it kills them; when it is killed, they exit by themselves. torch's workers
check for that after reading a sample, but those of a fork server check the server, which lives as long as they do.

On shutdown torch waits five seconds for each worker in sequence, and a worker that reads a sample or waits for the
network does not notice. Its data is no longer needed, so it is killed.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import resource_tracker
from typing import Any

from torch.utils.data import _utils, dataloader

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker.data.parent import end_with_parent

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name))
"""Signals that stop a training process; Windows supports two of them."""

_CAN_BLOCK = hasattr(signal, "pthread_sigmask")

_GRACE = 0.3
"""Seconds that all workers have to exit by themselves: idle ones need a tenth of it."""


def ignore_stop_signals() -> None:
    """Make this worker, and its children, ignore :data:`STOP_SIGNALS`; it still exits with the training process.

    A signal that arrived while they were held is dropped. torch has set its own handler for SIGTERM just before.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if _CAN_BLOCK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    end_with_parent()


@cache
def leave_alone_what_is_inherited() -> None:
    """Exclude objects from before the fork from garbage collection in a forked process.

    An iterator that the training process had dropped but not collected yet would, in a worker, shut down its own workers,
    and close files that the worker reads its indices from.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=gc.freeze)


@contextmanager
def signals_held(context: Any = None) -> Iterator[None]:
    """Context in which started processes have :data:`STOP_SIGNALS` blocked; the starting thread receives them later.

    So from the first moment of a worker until its :func:`ignore_stop_signals` no signal can end it, whether it is
    forked or spawned. A fork server that is started here has them blocked for good, and so have the workers that it
    forks; one that somebody started before can be ended by a signal to the group, and its workers with it. In the
    training process a signal that is sent meanwhile may be delivered to another thread: it is handled either way.

    Args:
        context: A loader's ``multiprocessing_context``; None for the default one.

    """
    leave_alone_what_is_inherited()
    if not _CAN_BLOCK:  # such a system has no signals to process groups either
        yield
        return
    if (context or multiprocessing).get_start_method() != "fork":
        resource_tracker.ensure_running()  # starting it within would unblock the signals (Python 3.11)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_quickly(iterator: Any) -> None:
    """Make the workers of ``iterator`` exit within a second when it ends. Call once, after its creation.

    Workers have a moment to exit by themselves, and are then killed: by torch's ``_shutdown_workers``, or by
    ``multiprocessing`` if Python ends first. Both would send SIGTERM, which workers ignore.

    Args:
        iterator: Iterator of a ``DataLoader``; one without workers is not changed.

    Raises:
        NameGone: If this version of torch or Python does not shut down workers in the known way.

    """
    require(dataloader, "_MultiProcessingDataLoaderIter")
    if not isinstance(iterator, dataloader._MultiProcessingDataLoaderIter):
        return
    require(iterator, "_workers", "_worker_pids_set", "_shutdown_workers")
    require(_utils.signal_handling, "_remove_worker_pids")
    ending = _Ending(iterator)
    for worker in iterator._workers:
        require(worker, "_popen")
        process = vars(worker)["_popen"]
        require(process, "terminate", "kill", "wait")
        vars(worker)["join"] = partial(_join, ending, worker)
        vars(worker)["terminate"] = vars(process)["terminate"] = partial(_kill, ending, process)


class _Ending:
    """Ends one iterator's workers. Does not keep the iterator alive, whose deletion ends them.

    Args:
        iterator: The iterator.

    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        self._deadline: float | None = None

    def patience(self) -> float:
        """Seconds to wait for a worker; the time limit for all starts with the first call."""
        if self._deadline is None:
            self._deadline = time.monotonic() + _GRACE
        return max(0.0, self._deadline - time.monotonic())

    def expect_deaths(self) -> None:
        """Unregister the workers, as torch treats a killed worker as a failure."""
        iterator = self._iterator()
        if iterator is not None and iterator._worker_pids_set:
            _utils.signal_handling._remove_worker_pids(id(iterator))
            iterator._worker_pids_set = False


def _join(ending: _Ending, worker: Any, timeout: float | None = None) -> None:
    if timeout is not None:
        timeout = min(timeout, ending.patience())
    type(worker).join(worker, timeout)


def _kill(ending: _Ending, process: Any) -> None:
    ending.expect_deaths()
    process.kill()
    process.wait(1.0)  # a moment: only the kernel can delay this
