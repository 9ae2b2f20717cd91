# SPDX-License-Identifier: Apache-2.0
"""Questions with windows of their contexts, as batches."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_sagemaker.data.batches import Integers, sample_indices
from lightning_sagemaker.recipes._common.data.checked import CheckedFiles
from lightning_sagemaker.recipes._common.data.fine_tuning_data import Inputs
from lightning_sagemaker.recipes._common.data.padding import Padding
from lightning_sagemaker.recipes._common.data.ragged import Ragged
from lightning_sagemaker.recipes.bert_qa.windows import Template, Windows, answer_labels, cut_windows

Batch = dict[str, Tensor]


class QuestionWindows(Inputs):
    """Windows of one split; complete batches are created at once.

    Args:
        folder: Folder of the cache.
        split: Name of the split.
        template: Template of the tokenizer.
        stride: Tokens that neighboring windows share.
        padding: How batches are padded; its ``limit`` is the maximum tokens of an input.

    """

    def __init__(
        self,
        folder: Path,
        split: str,
        template: Template,
        stride: int,
        padding: Padding,
    ) -> None:
        self._files = files = CheckedFiles.of(folder)
        self._contexts = Ragged(files, f"{split}-context-tokens")
        self._offsets = Ragged(files, f"{split}-context-offsets")
        self._asked = Ragged(files, f"{split}-question-tokens")
        self._context, first, last = files.load(f"{split}-questions.npy").T
        self._texts = f"{split}-texts.json"
        self._template = template
        self._padding = padding
        lengths = self._contexts.lengths[self._context]
        self.windows: Windows = cut_windows(self._asked.lengths, lengths, template.num_special, padding.limit, stride)
        around = len(template.before) + len(template.between)
        self._context_start: Integers = self._asked.lengths[self.windows.question] + around
        self._labels = answer_labels(self.windows, first, last, self._context_start)

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def num_questions(self) -> int:
        """Questions of the split."""
        return len(self._context)

    @property
    def lengths(self) -> Integers:
        """Tokens of each input, ``[windows]``."""
        return self._context_start + self.windows.end - self.windows.start + len(self._template.after)

    @functools.cached_property
    def texts(self) -> dict[str, Any]:
        """``contexts``, and ``questions`` with ``id`` and right ``answers``."""
        texts: dict[str, Any] = json.loads(self._files.read_text(self._texts))
        return texts

    def shift(self, windows: Integers) -> Integers:
        """Offset to add to positions in the inputs of ``windows`` to get positions in their contexts."""
        return self.windows.start[windows] - self._context_start[windows]

    def text(self, question: int, first: int, last: int) -> str:
        """The context of a question from one of its tokens to another."""
        context = self._context[question]
        offsets = self._offsets[context]
        piece: str = self.texts["contexts"][context][offsets[2 * first] : offsets[2 * last + 1]]
        return piece.strip()

    def __getitem__(self, draws: list[int]) -> Batch:
        """A batch.

        Returns:
            ``input_ids``, ``attention_mask``, ``token_type_ids``, ``in_context`` ``[B, length]``; ``labels``
            ``[B, 2]``, positions of the answer's first and last token; ``index`` ``[B]``.

        """
        indices = sample_indices(draws, len(self))
        needed = self.lengths[indices]
        length = self._padding.length(int(np.max(needed)))
        ids = np.full((len(indices), length), self._padding.token, dtype=np.int64)
        for row, index in zip(ids, indices, strict=True):
            parts = self._input(int(index))
            row[: len(parts)] = parts
        places = np.arange(length)
        starts = self._context_start[indices][:, None]
        ends = starts + (self.windows.end - self.windows.start)[indices][:, None]
        mask = places < needed[:, None]
        first_type, second_type = self._template.types
        numbers = np.asarray(draws, dtype=np.int64)
        arrays = {
            "input_ids": ids,
            "attention_mask": mask.astype(np.int64),
            "token_type_ids": np.where((places >= starts) & mask, second_type, first_type),
            "in_context": (places >= starts) & (places < ends),
            "labels": self._labels[indices],
            "index": np.where(numbers < 0, numbers, indices),
        }
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}

    def _input(self, index: int) -> Integers:
        question, windows, template = int(self.windows.question[index]), self.windows, self._template
        context = self._contexts[self._context[question]][windows.start[index] : windows.end[index]]
        asked = self._asked[question]
        parts: Integers = np.concatenate([template.before, asked, template.between, context, template.after])
        return parts
