# SPDX-License-Identifier: Apache-2.0
"""Loaders with their own state whose ``__iter__`` is a generator, as streaming's and litdata's.

Such a loader takes a state, creates its workers and notes an epoch's end only when the generator is run. Of a loader whose
length it knows Lightning requests no batch after the last one, so after a resume these would be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from types import GeneratorType
from typing import cast

from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.data.position import Position, Watch

_END = object()


def runs_late(batches: Iterator[object]) -> bool:
    """Whether an iteration begins with its first batch."""
    return isinstance(batches, GeneratorType)


def is_after_last(watched: Watch, batches: Iterator[object], position: Position) -> bool:
    """Whether no batch follows in the epoch, which may be short of the loader's length."""
    return runs_late(batches) and (position.get("last", False) or _is_whole(watched, position))


def _is_whole(watched: Watch, position: Position) -> bool:
    length = length_of(watched.loader)
    return length is not None and bool(position["yielded"] >= length)


def begin_after_last(watched: Watch, batches: Iterator[object], position: Position) -> None:
    """Begin an iteration at a position after which its epoch has no more batches."""
    if not runs_late(batches):
        return
    outer = random_state()
    has_ended = next(batches, _END) is _END
    restore_random_state(outer)
    if not has_ended and _is_whole(watched, position):
        watched.loader.load_state_dict(
            position["own"]
        )  # then the next iteration is that of the next epoch, as litdata's


def end_after_last(batches: Iterator[object], number: int, length: int | None) -> None:
    """Let a resumed iteration end after its last batch: litdata's next one would resume at the same position."""
    if number == length and runs_late(batches):
        next(batches, None)


def length_of(loader: object) -> int | None:
    """Number of batches of an epoch; None if it is unknown."""
    try:
        return len(cast(Sized, loader))
    except (TypeError, NotImplementedError):
        return None
