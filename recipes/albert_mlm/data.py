# SPDX-License-Identifier: Apache-2.0
"""Text to masked batches, as a LightningDataModule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_sagemaker.recipes._common.batches import sample_indices
from lightning_sagemaker.recipes._common.cache import read_manifest
from lightning_sagemaker.recipes._common.data import RecipeData, RecipeLoader, check_range
from lightning_sagemaker.recipes.albert_mlm.masking import Masking, Vocabulary
from lightning_sagemaker.recipes.albert_mlm.prepare import TOKENIZER_FOLDER, Preparation
from lightning_sagemaker.recipes.albert_mlm.shards import Shards
from lightning_sagemaker.recipes.albert_mlm.text import find_text
from lightning_sagemaker.recipes.albert_mlm.tokenizer import load_tokenizer

Batch = dict[str, Tensor]


class MaskedSequences(Dataset[Batch]):
    """Masked sequences by draw; whole batches are made at once.

    Args:
        shards: Of one split.
        masking: What to hide.

    """

    def __init__(self, shards: Shards, masking: Masking) -> None:
        self._shards = shards
        self._masking = masking

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, draws: list[int]) -> Batch:
        """One batch: ``input_ids`` ``[B, length]``, ``positions`` and ``labels`` ``[B, masked]``, ``index`` ``[B]``."""
        numbers = np.asarray(draws, dtype=np.int64)
        indices = sample_indices(draws, len(self))
        tokens, positions, labels = self._masking(self._shards.rows(indices), numbers)
        index = np.where(numbers < 0, numbers, indices)
        arrays = {"input_ids": tokens, "positions": positions, "labels": labels, "index": index}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class MLMDataModule(RecipeData):
    """Batches for masked-language-model training.

    The text is tokenised once per host and kept as memory-mapped shards; hosts may share ``cache_dir`` or not. Masking
    happens on the fly, other positions in each epoch. Sequences, masks and order depend on ``seed`` only: not on the
    number of processes, workers or accumulated micro-batches.

    Args:
        text: ``builtin`` (prose from Python's own documentation), ``auto`` (the job's ``train`` channel if it has one,
            else builtin), files or folders with one article per line, or the name of a Hugging Face dataset.
        dataset_config: Configuration of a Hugging Face dataset.
        dataset_split: Part of a Hugging Face dataset.
        text_column: Column of a Hugging Face dataset.
        tokenizer: ``train`` (a SentencePiece-like unigram model learned from the text), or a folder or hub name.
        vocab_size: Tokens of a trained tokenizer.
        lowercase: Whether a trained tokenizer lower-cases.
        sequence_length: Tokens per sequence with the special ones, usually 128 or 512.
        mask_probability: Share of a sequence's tokens to predict, at most 0.5.
        global_batch_size: Sequences per optimizer step over all processes and accumulated micro-batches.
        val_fraction: Share of articles for validation.
        test_fraction: Share of articles for testing.
        max_documents: Read no more articles than this.
        eval_batch_size: Sequences per process and forward pass in evaluation. Default: the global batch, at most 64.
        num_workers: Loader processes for each training process. Default: the processor cores of each training process
            on a GPU host, none otherwise.
        cache_dir: Where tokenised text is kept. Default: the user's cache folder, in a training job a temporary one.
        seed: Of order and masks. Default: the run's (``seed_everything``).

    Raises:
        MisconfigurationException: If a number is out of range, or batch sizes do not divide.

    """

    def __init__(
        self,
        text: str | list[str] = "auto",
        dataset_config: str | None = None,
        dataset_split: str = "train",
        text_column: str = "text",
        tokenizer: str = "train",
        vocab_size: int = 30000,
        lowercase: bool = True,
        sequence_length: int = 128,
        mask_probability: float = 0.15,
        global_batch_size: int = 256,
        val_fraction: float = 0.05,
        test_fraction: float = 0.01,
        max_documents: int | None = None,
        eval_batch_size: int | None = None,
        num_workers: int | None = None,
        cache_dir: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__("albert-mlm", global_batch_size, eval_batch_size, num_workers, cache_dir, seed)
        check_range("sequence_length", sequence_length, 16, 1 << 20)
        check_range("mask_probability", mask_probability, 0.0, 0.5)
        check_range("val_fraction", val_fraction, 0.0, 0.5)
        check_range("test_fraction", test_fraction, 0.0, 0.5)
        self._preparation = Preparation(
            find_text(
                text,
                self.job.channels,
                dataset_config=dataset_config,
                dataset_split=dataset_split,
                text_column=text_column,
            ),
            tokenizer,
            vocab_size,
            lowercase,
            sequence_length,
            val_fraction,
            test_fraction,
            max_documents,
        )
        self.sequence_length = sequence_length
        self.num_masked = max(1, round(mask_probability * (sequence_length - 2)))
        self._splits: dict[str, MaskedSequences] = {}
        self._manifest: dict[str, Any] | None = None

    @property
    def folder(self) -> Path:
        """The shards of these settings."""
        return self._preparation.folder(self.cache)

    @property
    def manifest(self) -> dict[str, Any]:
        """What is in the shards; after :meth:`setup`."""
        if self._manifest is None:
            raise RuntimeError("the data module was not set up: call prepare_data() and setup() first")
        return self._manifest

    @property
    def vocab_size(self) -> int:
        """Number of tokens; after :meth:`setup`."""
        return int(self.manifest["vocab_size"])

    def load_tokenizer(self) -> Any:
        """The tokenizer with which the shards were made."""
        return load_tokenizer(str(self.folder / TOKENIZER_FOLDER))

    def facts(self) -> dict[str, Any]:
        """For the model card."""
        splits = ((name.split("-")[0], entry["rows"]) for name, entry in self.manifest["files"].items())
        counts: dict[str, int] = {}
        for split, rows in splits:
            counts[split] = counts.get(split, 0) + rows
        return {"text": self._preparation.source.describe(), "sequences": counts, "tokens": self.sequence_length}

    def prepare_data(self) -> None:
        """Tokenise, once per host."""
        manifest, made = self._preparation.run(self.cache)
        count = sum(entry["rows"] for entry in manifest["files"].values())
        verb = "tokenised" if made else "found"
        self.say("%s %d articles: %d sequences in %s", verb, manifest["articles"], count, self.folder)

    def setup(self, stage: str) -> None:
        """Open the shards, and check that all processes have the same."""
        manifest = read_manifest(self.folder, self._preparation.settings())
        if manifest is None:
            raise RuntimeError(f"{self.folder} holds no whole cache, although prepare_data() has run")
        self.check_equal_everywhere(manifest["digest"])
        self._manifest = manifest
        vocabulary = Vocabulary(self.vocab_size, tuple(manifest["special_ids"]), manifest["mask_id"])
        masking = Masking(vocabulary, self.num_masked, self.seed)
        for split in ("train", "val", "test"):
            files = {name: entry for name, entry in manifest["files"].items() if name.startswith(f"{split}-")}
            if files:
                self._splits[split] = MaskedSequences(Shards(self.folder, files), masking)

    def train_dataloader(self) -> RecipeLoader:
        """Shuffled micro-batches of this process."""
        dataset = self._splits["train"]
        return self.training_loader(dataset, len(dataset))

    def val_dataloader(self) -> RecipeLoader | list[RecipeLoader]:
        """Each validation sequence once over all processes, always with the same masks."""
        return self._evaluation("val")

    def test_dataloader(self) -> RecipeLoader | list[RecipeLoader]:
        """As :meth:`val_dataloader`, for the test articles."""
        return self._evaluation("test")

    def predict_dataloader(self) -> RecipeLoader | list[RecipeLoader]:
        """The test articles, or the validation articles without any."""
        return self._evaluation("test" if "test" in self._splits else "val")

    def _evaluation(self, split: str) -> RecipeLoader | list[RecipeLoader]:
        dataset = self._splits.get(split)
        return [] if dataset is None else self.evaluation_loader(dataset, len(dataset))
