# SPDX-License-Identifier: Apache-2.0
"""Pipelined stages of a reduction: sequential for each piece, concurrent for different pieces.

On CPUs each stage has a thread and a process group of its own, and pieces pass in the order of arrival:
while one is reduced between hosts, the next is reduced within its host and the backward pass continues. All ranks run the
same collectives in the same order in each group, whatever the threads' timing. On GPUs the stages of all pieces follow each
other in one stream during the backward pass: concurrent kernels of several communicators may deadlock on resources.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

Stage = Callable[[Any], Any]
Last = Callable[[Any, Any], None]
_Item = tuple["_Bucket", object, object]
"""A bucket, a piece of it, and the previous stage's result."""
_Queue = SimpleQueue[_Item | None]
"""Items for one stage; None ends its thread."""
Future = torch.futures.Future[Tensor]


class _Bucket:
    """Progress of one bucket; the last stage's thread counts the pieces that have arrived.

    Args:
        buffer: The gradients, to be replaced by the result.
        pieces: Number of pieces.

    """

    def __init__(self, buffer: Tensor, pieces: int) -> None:
        self.future: Future = torch.futures.Future()
        self._buffer, self._left = buffer, pieces
        self._failed = threading.Lock()

    def arrived(self) -> None:
        self._left -= 1
        if not self._left and not self.has_failed:
            self.future.set_result(self._buffer)

    @property
    def has_failed(self) -> bool:
        return self._failed.locked()

    def attempt(self, stage: Callable[..., object], *arguments: object) -> object:
        """Run a stage and return its result. If this or another piece fails, return None; the future gets the error."""
        if self.has_failed:
            return None
        try:
            return stage(*arguments)
        except Exception as error:
            if self._failed.acquire(blocking=False):  # never released: a future is completed once
                self.future.set_exception(error)  # type: ignore[arg-type]
            return None


class ThreadPipeline:
    """A pipeline whose stages run in a thread each.

    Args:
        stages: All stages but the last. The first receives the piece, each other one the previous stage's result.
        last: The last stage: receives the piece, to write into, and the previous stage's result.

    """

    def __init__(self, stages: Sequence[Stage], last: Last) -> None:
        self._stages, self._last = list(stages), last
        self._inbox: _Queue | None = None

    def run(self, buffer: Tensor, pieces: Sequence[object]) -> Future:
        """Start the reduction of a bucket.

        Args:
            buffer: All gradients of the bucket; the future's result.
            pieces: Parts of the buffer, in the same order on all ranks.

        """
        if self._inbox is None:
            self._inbox = self._start()
        bucket = _Bucket(buffer, len(pieces))
        for piece in pieces:
            self._inbox.put((bucket, piece, piece))
        return bucket.future.then(_value)  # turns an error into one that DDP's C++ side handles

    def _start(self) -> _Queue:
        inboxes: list[_Queue] = [SimpleQueue() for _ in range(len(self._stages) + 1)]
        works = [_through(stage, outbox) for stage, outbox in zip(self._stages, inboxes[1:], strict=True)]
        for number, (work, inbox) in enumerate(zip([*works, _at_last(self._last)], inboxes, strict=True)):
            threading.Thread(target=_serve, args=(work, inbox), name=f"gradients-{number}", daemon=True).start()
        weakref.finalize(self, inboxes[0].put, None)  # after the items still in the queue
        return inboxes[0]


def _serve(work: Callable[[_Item | None], None], inbox: _Queue) -> None:
    """Main function of a stage's thread. It must not refer to the pipeline, which ends the thread when it is freed."""
    while (item := inbox.get()) is not None:
        work(item)
        del item  # release the tensors while waiting for the next
    work(None)


def _through(stage: Stage, outbox: _Queue) -> Callable[[_Item | None], None]:
    def work(item: _Item | None) -> None:
        if item is not None:
            bucket, piece, value = item
            item = bucket, piece, bucket.attempt(stage, value)
        outbox.put(item)

    return work


def _at_last(last: Last) -> Callable[[_Item | None], None]:
    def work(item: _Item | None) -> None:
        if item is not None:
            bucket, piece, value = item
            bucket.attempt(last, piece, value)
            bucket.arrived()

    return work


def _value(done: Future) -> Tensor:
    result: Tensor = done.value()
    return result


class StreamPipeline:
    """A pipeline whose stages run in one stream of a GPU.

    Args:
        stages: All stages but the last. The first receives the piece, each other one the previous stage's result.
        last: The last stage: receives the piece, to write into, and the previous stage's result.

    """

    def __init__(self, stages: Sequence[Stage], last: Last) -> None:
        self._stages, self._last = list(stages), last
        self._stream: torch.cuda.Stream | None = None

    def run(self, buffer: Tensor, pieces: Sequence[Tensor]) -> Future:
        """Start the reduction of a bucket.

        Args:
            buffer: All gradients of the bucket, on a GPU; the future's result.
            pieces: Parts of the buffer, in the same order on all ranks.

        """
        if self._stream is None:
            self._stream = torch.cuda.Stream(buffer.device)  # type: ignore[no-untyped-call]
        future: Future = torch.futures.Future(devices=[buffer.device])
        self._stream.wait_stream(torch.cuda.current_stream(buffer.device))
        with torch.cuda.stream(self._stream):
            for piece in pieces:
                value = piece
                for stage in self._stages:
                    value = stage(value)
                self._last(piece, value)
            buffer.record_stream(self._stream)
            future.set_result(buffer)  # waiters synchronize with the work enqueued in the stream so far
        return future
