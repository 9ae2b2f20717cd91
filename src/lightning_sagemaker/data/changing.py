# SPDX-License-Identifier: Apache-2.0
"""Changing a loader's number of workers between two batches, in the middle of an epoch.

Only for data whose samples do not depend on the worker that reads them: then the following batches are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.data.position import WATCH

require(_MultiProcessingDataLoaderIter, "_shutdown_workers")

_PREFETCH = 2
"""Number of batches that each worker prefetches, as torch's default."""


class ChangingIterator(Iterator[Any]):
    """Iterator of a loader whose ``workers_wanted`` may change; restarted at its watch's position, else its sampler's.

    Args:
        loader: To iterate.
        begun: Iterator to continue with, if the first batch is not the start.

    """

    def __init__(self, loader: Any, begun: Any = None) -> None:
        self._loader = loader
        self.begun = begun

    def __next__(self) -> Any:
        loader = self._loader
        is_another = loader.workers_wanted != loader.num_workers
        if self.begun is None:
            if is_another:
                _shut_down(loader._iterator)
                _set_num_workers(loader, loader.workers_wanted)
            self.begun = begin_epoch(loader)
        elif is_another:
            self._change()
        return next(self.begun)

    def _change(self) -> None:
        loader, watch = self._loader, getattr(self._loader, WATCH, None)
        if watch is not None:
            watch.seek(watch.here())
        _shut_down(self.begun)
        _set_num_workers(loader, loader.workers_wanted)
        outer = random_state()  # an iterator draws a seed; training's draws must not depend on timing
        self.begun = DataLoader.__iter__(loader)
        restore_random_state(outer)


def begin_epoch(loader: Any) -> Any:
    """An iterator of ``loader``; as many random numbers are drawn as for one without workers.

    Torch draws a seed for each new iterator, but not for persistent workers in a new epoch.
    """
    if loader.num_workers and loader._iterator is not None:
        torch.empty((), dtype=torch.int64).random_()
    return DataLoader.__iter__(loader)


def _shut_down(iterator: Any) -> None:
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        iterator._shutdown_workers()


def _set_num_workers(loader: Any, number: int) -> None:
    """Make the next iterator of a loader start ``number`` persistent workers."""
    loader.num_workers = number
    loader.prefetch_factor = _PREFETCH if number else None
    vars(loader).update(persistent_workers=number > 0, _iterator=None)
