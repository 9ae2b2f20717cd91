# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.distributed.checkpoint.async_utils``: checkpoints that are being written."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class AsyncCallsQueue:
    """Checkpoints that are being written, oldest first."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, Future[object]]] = []
        self._count = 0

    def schedule(self, future: Future[object]) -> int:
        """Add a checkpoint; returns its number."""
        number = self._count
        self._calls.append((number, future))
        self._count += 1
        return number

    def maybe_finalize_async_calls(
        self, blocking: bool = False, process_group: ProcessGroup | None = None, skip_sync: bool = False
    ) -> list[int]:
        """Remove finished checkpoints; returns their numbers.

        Args:
            blocking: Wait for all.
            process_group: Without effect: each process checks its own writes.
            skip_sync: Without effect.

        Raises:
            Exception: If writing a checkpoint has failed: its error.

        """
        done = []
        while self._calls and (blocking or self._calls[0][1].done()):
            number, future = self._calls.pop(0)
            future.result()
            done.append(number)
        return done

    def get_num_unfinalized_calls(self) -> int:
        """Number of checkpoints that are being written."""
        return len(self._calls)
