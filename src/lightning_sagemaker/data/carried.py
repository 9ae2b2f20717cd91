# SPDX-License-Identifier: Apache-2.0
"""Sends the states of a loader worker's random number generators along with a batch, if they have changed.

Masking, cropping and augmentation draw random numbers in the workers. A worker of a resumed run must continue the
sequence.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from lightning_sagemaker.checkpoint.random_state import equal_states
from lightning_sagemaker.data import workers
from lightning_sagemaker.data.captured import Capture, Captured


@dataclass
class Carried:
    """A batch, its worker, and the worker's state after it as bytes (a tensor would need a file descriptor)."""

    batch: Any
    worker: int
    state: bytes | None

    def pin_memory(self) -> Carried:
        """Pin the batch; called by the loader's pinning thread."""
        return Carried(pin_memory(self.batch), self.worker, self.state)  # type: ignore[no-untyped-call]


class _Collate:
    """Replaces ``collate_fn``, the last function that a worker calls for a batch.

    A loader's own function may call ``self.collate_fn`` for parts of a batch: the state is only sent with the whole batch.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate
        self._is_within = False
        self._capture: Capture | None = None
        self._before: Captured | None = None

    def __call__(self, samples: Any) -> Any:
        info = get_worker_info()
        if info is None or self._is_within:
            return self.collate(samples)
        self._is_within = True
        try:
            batch = self.collate(samples)
        finally:
            self._is_within = False
        return Carried(batch, info.id, self._changed())

    def begin(self, state: Captured | None) -> None:
        """Restore the worker's state; called in the worker before its first batch."""
        info = get_worker_info()
        assert info is not None
        self._capture = Capture(SimpleNamespace(dataset=info.dataset, collate_fn=self.collate))
        if state is not None:
            self._capture.put(state)
        self._before = self._capture.take()

    def _changed(self) -> bytes | None:
        assert self._capture is not None
        now = self._capture.take()
        if self._before is not None and equal_states(now, self._before):
            return None
        self._before = now
        return pickle.dumps(now)


class _Begin:
    """Replaces ``worker_init_fn``."""

    def __init__(
        self, begin: Callable[[int], None] | None, collate: _Collate | None, states: dict[int, Captured]
    ) -> None:
        self._begin, self._collate, self._states = begin, collate, states

    def __call__(self, worker: int) -> None:
        workers.ignore_stop_signals()
        if self._begin is not None:
            self._begin(worker)
        if self._collate is not None:
            self._collate.begin(self._states.get(worker))


@contextmanager
def carrying(loader: Any, states: dict[int, Captured] | None) -> Iterator[None]:
    """Context for creating an iterator whose workers send their states along, and start with ``states``.

    With None they do neither, as no batch depends on them.
    """
    collate, begin = loader.collate_fn, loader.worker_init_fn
    carrier = None if states is None else _Collate(collate)
    loader.collate_fn = carrier or collate
    loader.worker_init_fn = _Begin(begin, carrier, states or {})
    try:
        yield
    finally:
        loader.collate_fn, loader.worker_init_fn = collate, begin
