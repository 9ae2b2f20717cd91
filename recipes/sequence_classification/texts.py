# SPDX-License-Identifier: Apache-2.0
"""Tokenized texts as batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightning_sagemaker.data.batches import Integers, sample_indices
from lightning_sagemaker.recipes._common.data.checked import CheckedFiles
from lightning_sagemaker.recipes._common.data.fine_tuning_data import Inputs
from lightning_sagemaker.recipes._common.data.padding import Padding
from lightning_sagemaker.recipes._common.data.ragged import Ragged

Batch = dict[str, Tensor]


class Texts(Inputs):
    """Tokenized texts of one split.

    Args:
        folder: Folder of the cache.
        split: Name of the split.
        padding: How batches are padded.

    """

    def __init__(self, folder: Path, split: str, padding: Padding) -> None:
        files = CheckedFiles.of(folder)
        self._ids = Ragged(files, split)
        self._firsts = files.load(f"{split}-firsts.npy")
        labels = f"{split}-labels.npy"
        self.labels = files.load(labels) if labels in files else None
        self._padding = padding

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def lengths(self) -> Integers:
        """Tokens of each sample, ``[samples]``."""
        return self._ids.lengths

    def __getitem__(self, draws: list[int]) -> Batch:
        """Batch of tokens, types, mask ``[B, length]``; ``labels`` ``[B]`` or ``[B, classes]``; ``index`` ``[B]``."""
        indices = sample_indices(draws, len(self))
        rows = [self._ids[index] for index in indices]
        length = self._padding.length(max(len(row) for row in rows))
        ids = np.full((len(rows), length), self._padding.token, dtype=np.int64)
        for target, row in zip(ids, rows, strict=True):
            target[: len(row)] = row
        places = np.arange(length)
        mask = places < np.array([[len(row)] for row in rows])
        second = (places >= self._firsts[indices][:, None]) & mask
        numbers = np.asarray(draws, dtype=np.int64)
        arrays = {
            "input_ids": ids,
            "attention_mask": mask.astype(np.int64),
            "token_type_ids": second.astype(np.int64),
            "index": np.where(numbers < 0, numbers, indices),
        }
        if self.labels is not None:
            arrays["labels"] = self.labels[indices]
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
