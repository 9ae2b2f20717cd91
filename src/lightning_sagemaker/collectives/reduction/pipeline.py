# SPDX-License-Identifier: Apache-2.0
"""Stages of a reduction, one after the other for each piece, at the same time for different pieces.

On processors each stage has a thread and a process group of its own, and pieces pass in the order in which they came:
while one is between hosts the next is within its host, and the backward pass continues. All ranks make the same
collectives in the same order in each group, whatever the threads' timing. On GPUs the stages of all pieces follow each
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
"""A bucket, a piece of it, and what the stage before has returned."""
_Queue = SimpleQueue[_Item | None]
"""None ends the thread that reads it."""
Future = torch.futures.Future[Tensor]


class _Bucket:
    """What is still under way of one bucket; its last stage's thread counts.

    Args:
        buffer: The result, in the place of the gradients.
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
        """What a stage returns; None, and the future has its error, if it fails or another piece's has."""
        if self.has_failed:
            return None
        try:
            return stage(*arguments)
        except Exception as error:
            if self._failed.acquire(blocking=False):  # never given back: a future has one end
                self.future.set_exception(error)  # type: ignore[arg-type]
            return None


class ThreadPipeline:
    """Stages with a thread each.

    Args:
        stages: All but the last; the first gets the piece itself, each other one what the one before has returned.
        last: The last stage: is given the piece, to write into, and what the one before has returned.

    """

    def __init__(self, stages: Sequence[Stage], last: Last) -> None:
        self._stages, self._last = list(stages), last
        self._inbox: _Queue | None = None

    def run(self, buffer: Tensor, pieces: Sequence[object]) -> Future:
        """Begin with a bucket.

        Args:
            buffer: The future's result.
            pieces: In their order; the same on all ranks.

        """
        if self._inbox is None:
            self._inbox = self._start()
        bucket = _Bucket(buffer, len(pieces))
        for piece in pieces:
            self._inbox.put((bucket, piece, piece))
        return bucket.future.then(_value)  # in which an error becomes one that DDP's C++ side knows

    def _start(self) -> _Queue:
        inboxes: list[_Queue] = [SimpleQueue() for _ in range(len(self._stages) + 1)]
        works = [_through(stage, outbox) for stage, outbox in zip(self._stages, inboxes[1:], strict=True)]
        for number, (work, inbox) in enumerate(zip([*works, _at_last(self._last)], inboxes, strict=True)):
            threading.Thread(target=_serve, args=(work, inbox), name=f"gradients-{number}", daemon=True).start()
        weakref.finalize(self, inboxes[0].put, None)  # behind what is still under way
        return inboxes[0]


def _serve(work: Callable[[_Item | None], None], inbox: _Queue) -> None:
    """A thread: it knows nothing of the pipeline, whose end is its own."""
    while (item := inbox.get()) is not None:
        work(item)
        del item  # nothing is kept while waiting for the next
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
    """Stages in one stream of a GPU.

    Args:
        stages: All but the last; the first gets the piece itself, each other one what the one before has returned.
        last: The last stage: is given the piece, to write into, and what the one before has returned.

    """

    def __init__(self, stages: Sequence[Stage], last: Last) -> None:
        self._stages, self._last = list(stages), last
        self._stream: torch.cuda.Stream | None = None

    def run(self, buffer: Tensor, pieces: Sequence[Tensor]) -> Future:
        """Begin with a bucket.

        Args:
            buffer: On a GPU; the future's result.
            pieces: In their order; the same on all ranks.

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
            future.set_result(buffer)  # what is in the stream by now is waited for
        return future
