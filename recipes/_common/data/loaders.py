# SPDX-License-Identifier: Apache-2.0
"""The loader of the recipes: complete batches, with a number of workers that may change within an epoch."""

from __future__ import annotations

from typing import Any

from lightning_sagemaker.data.changing import ChangingIterator, begin_epoch
from lightning_sagemaker.data.grouped import GroupedLoader
from lightning_sagemaker.data.position import is_watched


class RecipeLoader(GroupedLoader):
    """Loads complete batches: the sampler yields lists of samples, of each of which ``dataset[list]`` makes a batch.

    Attributes:
        workers_wanted: Number of workers from the next batch on, which does not change the batches; None: no change.

    """

    workers_wanted: int | None = None

    def __iter__(self) -> Any:
        """As torch's, with a number of workers that may change."""
        if self.workers_wanted is None or is_watched(self):
            return super().__iter__()
        return ChangingIterator(self, None if self.num_workers else begin_epoch(self))
