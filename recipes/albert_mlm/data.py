# SPDX-License-Identifier: Apache-2.0
"""Text to masked batches, as a LightningDataModule."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lightning_sagemaker import SageMakerJob
from lightning_sagemaker.recipes.albert_mlm.draws import EvaluationDraws, TrainingDraws
from lightning_sagemaker.recipes.albert_mlm.masking import Masking, Vocabulary
from lightning_sagemaker.recipes.albert_mlm.prepare import TOKENIZER_FOLDER, Preparation
from lightning_sagemaker.recipes.albert_mlm.shards import Shards, read_manifest
from lightning_sagemaker.recipes.albert_mlm.text import find_text
from lightning_sagemaker.recipes.albert_mlm.tokenizer import load_tokenizer

_log = logging.getLogger(__name__)

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

    def __getitem__(self, draw: int) -> Batch:
        return {name: values[0] for name, values in self.__getitems__([draw]).items()}

    def __getitems__(self, draws: Sequence[int]) -> Batch:
        """One batch: ``input_ids`` ``[B, length]``, ``positions`` and ``labels`` ``[B, masked]``, ``index`` ``[B]``."""
        numbers = np.asarray(draws, dtype=np.int64)
        indices = numbers % len(self._shards)
        tokens, positions, labels = self._masking(self._shards.rows(indices), numbers)
        index = np.where(numbers < 0, numbers, indices)
        arrays = {"input_ids": tokens, "positions": positions, "labels": labels, "index": index}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _as_it_is(batch: Any) -> Any:
    return batch


class MLMDataModule(LightningDataModule):
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
        num_workers: Processes that make batches, for each training process; 0: in the training process.
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
        num_workers: int = 0,
        cache_dir: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        _check_range("sequence_length", sequence_length, 16, 1 << 20)
        _check_range("mask_probability", mask_probability, 0.0, 0.5)
        _check_range("val_fraction", val_fraction, 0.0, 0.5)
        _check_range("test_fraction", test_fraction, 0.0, 0.5)
        _check_range("global_batch_size", global_batch_size, 1, 1 << 40)
        job = SageMakerJob.from_environment()
        self._preparation = Preparation(
            find_text(
                text,
                job.channels,
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
        self._cache = Path(cache_dir) if cache_dir else _default_cache(job)
        self.sequence_length = sequence_length
        self.global_batch_size = global_batch_size
        self.num_masked = max(1, round(mask_probability * (sequence_length - 2)))
        self._num_workers = num_workers
        self._seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self._splits: dict[str, MaskedSequences] = {}
        self._manifest: dict[str, Any] | None = None

    @property
    def folder(self) -> Path:
        """The shards of these settings."""
        return self._preparation.folder(self._cache)

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

    def prepare_data(self) -> None:
        """Tokenise, once per host."""
        manifest, made = self._preparation.run(self._cache)
        count = sum(entry["rows"] for entry in manifest["files"].values())
        verb = "tokenised" if made else "found"
        if self.trainer is None or self.trainer.is_global_zero:
            _log.info("%s %d articles: %d sequences in %s", verb, manifest["articles"], count, self.folder)

    def setup(self, stage: str) -> None:
        """Open the shards, and check that all processes have the same."""
        manifest = read_manifest(self.folder, self._preparation.settings())
        if manifest is None:
            raise RuntimeError(f"{self.folder} holds no whole cache, although prepare_data() has run")
        self._check_equal_everywhere(manifest)
        self._manifest = manifest
        vocabulary = Vocabulary(self.vocab_size, tuple(manifest["special_ids"]), manifest["mask_id"])
        masking = Masking(vocabulary, self.num_masked, self._seed)
        for split in ("train", "val", "test"):
            files = {name: entry for name, entry in manifest["files"].items() if name.startswith(f"{split}-")}
            if files:
                self._splits[split] = MaskedSequences(Shards(self.folder, files), masking)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled micro-batches of this process."""
        micro_batch = self.micro_batch_size()
        dataset = self._splits["train"]
        if len(dataset) < self.global_batch_size:
            raise MisconfigurationException(
                f"data.global_batch_size={self.global_batch_size} was set, but the text makes {len(dataset)} training"
                " sequences. HINT: lower it, or give more text."
            )
        sampler = TrainingDraws(dataset, self.global_batch_size, **self._replica(), seed=self._seed)
        return self._loader(dataset, sampler, micro_batch)

    def val_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """Each validation sequence once over all processes, always with the same masks."""
        return self._evaluation_loader("val")

    def test_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """As :meth:`val_dataloader`, for the test articles."""
        return self._evaluation_loader("test")

    def predict_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """The test articles, or the validation articles without any."""
        return self._evaluation_loader("test" if "test" in self._splits else "val")

    def micro_batch_size(self) -> int:
        """Sequences per process and forward pass: the global batch over processes and accumulation.

        Raises:
            MisconfigurationException: If that is not a whole number.

        """
        processes = self._replica()["num_replicas"]
        accumulate = 1 if self.trainer is None else self.trainer.accumulate_grad_batches
        if self.global_batch_size % (processes * accumulate):
            raise MisconfigurationException(
                f"data.global_batch_size={self.global_batch_size} was set, but {processes} processes train with"
                f" trainer.accumulate_grad_batches={accumulate}."
                f" HINT: make it a multiple of {processes * accumulate}."
            )
        return self.global_batch_size // (processes * accumulate)

    def _evaluation_loader(self, split: str) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        if split not in self._splits:
            return []
        dataset = self._splits[split]
        return self._loader(dataset, EvaluationDraws(dataset, **self._replica()), self.micro_batch_size())

    def _loader(self, dataset: MaskedSequences, sampler: Sampler[int], batch_size: int) -> DataLoader[Batch]:
        return DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=self._num_workers,
            collate_fn=_as_it_is,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=self._num_workers > 0,
        )

    def _replica(self) -> dict[str, int]:
        """How many processes see different data, and which of them this is; the strategy knows."""
        strategy = None if self.trainer is None else self.trainer.strategy
        alone = {"num_replicas": 1, "rank": 0}
        replica: dict[str, int] = dict(getattr(strategy, "distributed_sampler_kwargs", alone))
        return replica

    def _check_equal_everywhere(self, manifest: dict[str, Any]) -> None:
        if self.trainer is None or self.trainer.world_size == 1:
            return
        digest = self.trainer.strategy.broadcast(manifest["digest"])
        if digest != manifest["digest"]:
            raise RuntimeError(
                f"this process found other sequences than rank 0 (digest {manifest['digest']} instead of {digest})."
                " HINT: give all hosts the same text and the same tokenizer, or a common data.cache_dir."
            )


def _default_cache(job: SageMakerJob) -> Path:
    if job.in_container:  # not among the folders that SageMaker uploads
        return Path(tempfile.gettempdir()) / f"lightning-sagemaker-{os.getuid()}" / "albert-mlm"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "lightning-sagemaker" / "albert-mlm"


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise MisconfigurationException(f"data.{name}={value} was set. HINT: it must be between {low:g} and {high:g}.")
