# SPDX-License-Identifier: Apache-2.0
"""Shards in S3, as if they were here: read in blocks, through a store on the host's disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lightning_sagemaker.data.batches import EvaluationBatches, TrainingBatches
from lightning_sagemaker.data.order import Blocks
from lightning_sagemaker.data.read_costs import reading_cost
from lightning_sagemaker.data.streamed import StreamedRows
from lightning_sagemaker.recipes._common.data.remote import RemoteFolder
from lightning_sagemaker.recipes.albert_mlm.shards import Integers


class StreamedShards:
    """All sequences of one split.

    Args:
        rows: Rows of all splits.
        split: ``train``, ``val`` or ``test``.

    """

    def __init__(self, rows: StreamedRows, split: str) -> None:
        self._rows, self._split = rows, split

    def __len__(self) -> int:
        return self._rows.rows(self._split)

    def rows(self, indices: Integers) -> Integers:
        """The sequences at ``indices``: ``[len(indices), length]``."""
        return self._rows.read(self._split, 0, indices).astype(np.int64)

    def first_segments(self, indices: Integers) -> Integers | None:
        """Their numbers of tokens in the first segment ``[len(indices)]``; ``None`` if there is only one segment."""
        if self._rows.columns(self._split) == 1:
            return None
        return self._rows.read(self._split, 1, indices)[:, 0].astype(np.int64)

    @property
    def blocks(self) -> Blocks:
        """How training reads them."""
        return self._rows.blocks(self._split)

    def look_ahead(self, batches: object) -> None:
        """Have the blocks of following batches fetched while one is trained on."""
        assert isinstance(batches, (TrainingBatches, EvaluationBatches))
        self._rows.look_ahead(self._split, batches)


def open_streamed(
    remote: RemoteFolder, folder: Path, manifest: dict[str, Any], limit: int, skip_damaged: bool
) -> StreamedRows:
    """The rows of all splits.

    Args:
        remote: Where they are.
        folder: Copy of the files next to them.
        manifest: Theirs.
        limit: Bytes of disk to use at most.
        skip_damaged: Train on something else in the place of what is damaged.

    """
    remote.objects.connect()
    store = folder / f"blocks-{manifest['digest']}"
    return StreamedRows(remote.address, remote.read_index(folder), store, limit, remote.objects, skip_damaged)


def describe_fetched(rows: StreamedRows) -> str:
    """What this host has fetched since the rows were opened, and what that costs."""
    requests, size = rows.fetched()
    return f"this host made {requests} requests for {size / 1e9:.3g} GB, {reading_cost(requests)}"
