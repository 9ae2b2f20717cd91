# SPDX-License-Identifier: Apache-2.0
"""Loaders with their own state whose ``__iter__`` is a generator, as streaming's and litdata's.

Such a loader takes a state, creates its workers and notes an epoch's end only when the generator is run. Of a loader whose
length it knows Lightning requests no batch after the last one, so after a resume these would be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import GeneratorType
from typing import Any

from lightning_sagemaker.data.position import Position

_END = object()


def runs_late(batches: Iterator[Any]) -> bool:
    """Whether an iteration begins with its first batch."""
    return isinstance(batches, GeneratorType)


def begin_after_last(loader: Any, batches: Iterator[Any], position: Position) -> None:
    """Begin an iteration at a position after which its epoch has no more batches."""
    if not runs_late(batches) or next(batches, _END) is _END:
        return
    if (length := length_of(loader)) is not None and position["yielded"] >= length:
        loader.load_state_dict(position["own"])  # by which the next iteration is that of the next epoch, as litdata's


def end_after_last(batches: Iterator[Any], number: int, length: int | None) -> None:
    """Let a resumed iteration end after its last batch: litdata's next one would resume at the same position."""
    if number == length and runs_late(batches):
        next(batches, None)


def length_of(loader: Any) -> int | None:
    """Number of batches of an epoch; None if it is unknown."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
