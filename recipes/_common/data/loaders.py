# SPDX-License-Identifier: Apache-2.0
"""The loader of the recipes: complete batches, with a number of workers that may change within an epoch."""

from __future__ import annotations

from typing import Any

from lightning_sagemaker.data.changing import ChangingIterator, begin_epoch
from lightning_sagemaker.data.loader import BegunLate
from lightning_sagemaker.data.position import is_watched


class RecipeLoader(BegunLate):
    """Loads complete batches: the sampler's items are lists of samples, the dataset's ``dataset[list]`` a batch.

    Attributes:
        workers_wanted: From the next batch on, which is the same whoever makes it; None if it stays as it is.

    """

    workers_wanted: int | None = None

    def __iter__(self) -> Any:
        """As torch does, but for the number of workers."""
        if self.workers_wanted is None or is_watched(self):
            return super().__iter__()
        return ChangingIterator(self, None if self.num_workers else begin_epoch(self))
