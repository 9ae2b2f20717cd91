# SPDX-License-Identifier: Apache-2.0
"""Shards in S3, read in blocks through a cache on the host's disk."""

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
    """All sequences of one split, with the methods of :class:`Shards`.

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
        """Tokens in the first segment of the sequences, ``[len(indices)]``; ``None`` if there is only one segment."""
        if self._rows.columns(self._split) == 1:
            return None
        return self._rows.read(self._split, 1, indices)[:, 0].astype(np.int64)

    @property
    def blocks(self) -> Blocks:
        """Blocks in which training reads."""
        return self._rows.blocks(self._split)

    def look_ahead(self, batches: object) -> None:
        """Prefetch the blocks of following batches."""
        assert isinstance(batches, (TrainingBatches, EvaluationBatches))
        self._rows.look_ahead(self._split, batches)


def open_streamed(
    remote: RemoteFolder, folder: Path, manifest: dict[str, Any], limit: int, skip_damaged: bool
) -> StreamedRows:
    """The rows of all splits.

    Args:
        remote: Folder in S3 with the shards.
        folder: Local folder with the copies of small files, and for cached blocks.
        manifest: Manifest of the shards.
        limit: Maximum bytes of disk to use.
        skip_damaged: Return other rows in place of damaged ones, instead of raising.

    """
    remote.objects.connect()
    store = folder / f"blocks-{manifest['digest']}"
    return StreamedRows(remote.address, remote.read_index(folder), store, limit, remote.objects, skip_damaged)


def describe_fetched(rows: StreamedRows) -> str:
    """A line on this host's requests and bytes since the rows were opened, and their cost."""
    requests, size = rows.fetched()
    return f"this host made {requests} requests for {size / 1e9:.3g} GB, {reading_cost(requests)}"
