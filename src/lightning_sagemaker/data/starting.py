# SPDX-License-Identifier: Apache-2.0
"""How a loader that creates its iterators itself starts at a position: its workers, and its own state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from lightning_sagemaker.data.captured import Captured
from lightning_sagemaker.data.position import Position, Watch, has_state
from lightning_sagemaker.data.run_late import begin_after_last
from lightning_sagemaker.data.worker_states import has_workers

_RESTARTS = "restart_on_stop_iteration"


def due_of(watched: Watch, position: Position | None) -> dict[int, Captured]:
    """The states with which workers start at a position."""
    if position is None:
        return {}
    states = position["began" if watched.reads_again(position["own"]) else "states"]
    return {int(worker): state for worker, state in states.items()}


def take_end(watched: Watch, end: Position, begin: Callable[[], Iterator[object]]) -> None:
    """Have a loader take its state of an epoch's end now, which it has loaded, if its next iteration would begin there.

    Lightning stops before the end of a loader whose length it knows; ``torchdata.nodes.Loader`` restarts itself after it.
    """
    if not end.get("ended", True) or _restarts(watched.loader):
        start_at(watched, end)
        with not_restarting(watched.loader):
            batches = begin()
        begin_after_last(watched, batches, end)
    watched.capture.put_objects(end["now"])
    watched.passed = end


def start_at(watched: Watch, end: Position) -> None:
    """Start workers that outlive an epoch, of a loader with its own state, at its end."""
    if watched.is_persistent and has_state(watched.loader) and not has_workers(watched.loader):
        watched.workers.begin(end["states"], end["began"])
        watched.workers.outlived = True  # what their start draws is undone
        watched.workers.due = due_of(watched, end)


@contextlib.contextmanager
def not_restarting(loader: object) -> Iterator[None]:
    """Context in which ``torchdata.nodes.Loader`` takes a state as it is, without looking for a batch after it.

    Such a batch is drawn too early; and after an epoch's end it would draw an order, and then another one.
    """
    if not _restarts(loader):
        yield
        return
    setattr(loader, _RESTARTS, False)
    try:
        yield
    finally:
        setattr(loader, _RESTARTS, True)


def _restarts(loader: object) -> bool:
    return bool(getattr(loader, _RESTARTS, False))
