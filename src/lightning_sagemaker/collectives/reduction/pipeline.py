# SPDX-License-Identifier: Apache-2.0
"""Stages of a reduction, one after the other for each piece, at the same time for different pieces.

On processors each stage has a thread and a process group of its own, and pieces pass in the order in which they came:
while one is between hosts the next is within its host, and the backward pass goes on. All ranks make the same collectives
in the same order in each group, whatever the threads' timing. On GPUs the stages of all pieces follow each other in one
stream beside the backward pass: kernels of several communicators at a time may wait for each other's room for ever.
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

    def fail(self, error: Exception) -> None:
        if self._failed.acquire(blocking=False):  # never given back: a future has one end
            self.future.set_exception(error)  # type: ignore[arg-type]


class ThreadPipeline:
    """Stages with a thread each.

    Args:
        stages: What is done to each piece; the first gets the piece itself.
        place: Puts the last stage's result into the piece.

    """

    def __init__(self, stages: Sequence[Stage], place: Callable[[Any, Any], None]) -> None:
        self._stages, self._place = list(stages), place
        self._inbox: SimpleQueue[Any] | None = None

    def run(self, buffer: Tensor, pieces: Sequence[Any]) -> Future:
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
        return bucket.future

    def _start(self) -> SimpleQueue[Any]:
        inboxes: list[SimpleQueue[Any]] = [SimpleQueue() for _ in self._stages]
        for number, stage in enumerate(self._stages):
            last = number + 1 == len(inboxes)
            pass_on = _finish(self._place) if last else inboxes[number + 1].put
            name = f"gradients-{number}"
            threading.Thread(target=_work, args=(stage, inboxes[number], pass_on), name=name, daemon=True).start()
        weakref.finalize(self, _stop, inboxes)
        return inboxes[0]


def _work(stage: Stage, inbox: SimpleQueue[Any], pass_on: Callable[[Any], None]) -> None:
    while (item := inbox.get()) is not None:
        bucket, piece, value = item
        if not bucket.has_failed:
            try:
                value = stage(value)
            except Exception as error:
                bucket.fail(error)
        pass_on((bucket, piece, value))
        del item, bucket, piece, value  # nothing is kept while waiting for the next


def _finish(place: Callable[[Any, Any], None]) -> Callable[[Any], None]:
    def finish(item: Any) -> None:
        bucket, piece, value = item
        if not bucket.has_failed:
            try:
                place(piece, value)
            except Exception as error:
                bucket.fail(error)
        bucket.arrived()

    return finish


def _stop(inboxes: Sequence[SimpleQueue[Any]]) -> None:
    for inbox in inboxes:
        inbox.put(None)


class StreamPipeline:
    """Stages in one stream of a GPU.

    Args:
        stages: What is done to each piece; the first gets the piece itself.
        place: Puts the last stage's result into the piece.

    """

    def __init__(self, stages: Sequence[Stage], place: Callable[[Any, Any], None]) -> None:
        self._stages, self._place = list(stages), place
        self._stream: Any = None

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
                self._place(piece, value)
            buffer.record_stream(self._stream)
            future.set_result(buffer)  # what is in the stream by now is waited for
        return future
