# SPDX-License-Identifier: Apache-2.0
"""Logs that a rank waits for its data loader, as the others wait for that rank."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time

from torch.utils.data import dataloader


class LoaderWatch:
    """Logs, at most once per batch, that this process has waited too long for the batch.

    A worker that hangs, in the user's code or in a fork, raises no error: the training process waits for its
    batch forever, and the other ranks wait in a collective whose timeout does not identify that rank.

    Args:
        rank: Rank of this process.
        patience: Seconds of waiting before the log line.

    """

    def __init__(self, rank: int, patience: float) -> None:
        self._rank, self._patience = rank, patience
        self._batches = self._seen = 0
        self._since = time.monotonic()
        self._was_said = False

    def next_batch(self) -> None:
        """Record that a batch has arrived. Called by the training thread."""
        self._batches += 1

    def look(self) -> None:
        """Check the waiting time. Called periodically by another thread."""
        now = time.monotonic()
        if self._seen != self._batches or not _is_in_loader():  # a long step does not count as waiting
            self._seen, self._since, self._was_said = self._batches, now, False
        elif now - self._since > self._patience and not self._was_said:
            self._was_said = True
            _log_wait(self._rank, now - self._since)


def _is_in_loader() -> bool:
    """Whether the main thread runs code of torch's loaders."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_filename != dataloader.__file__:
        frame = frame.f_back
    return frame is not None


def _log_wait(rank: int, seconds: float) -> None:
    # Other children may be older, such as another loader's workers; the newest are most likely this loader's.
    workers = [
        str(pid) for pid in sorted((worker.pid or 0 for worker in multiprocessing.active_children()), reverse=True)
    ]
    whose = f" (processes {', '.join(workers)})" if workers else ""
    sys.stderr.write(
        f"lightning-sagemaker: rank {rank} has waited {seconds:.0f} s for the next batch of its data loader{whose}; other"
        f" ranks wait for rank {rank}. HINT: find out where it hangs: `py-spy dump --pid "
        f"{workers[0] if workers else 'PID'}`.\n"
    )
    sys.stderr.flush()
