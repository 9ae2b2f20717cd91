# SPDX-License-Identifier: Apache-2.0
"""Masked batches of text, as a LightningDataModule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import Dataset

from lightning_sagemaker.data.batches import sample_indices
from lightning_sagemaker.data.damage import DataReadError
from lightning_sagemaker.data.streamed import StreamedRows
from lightning_sagemaker.recipes._common.data.cache import damages, load_manifest
from lightning_sagemaker.recipes._common.data.checked import CheckedFiles, hint
from lightning_sagemaker.recipes._common.data.data_module import RecipeData
from lightning_sagemaker.recipes._common.data.loaders import RecipeLoader
from lightning_sagemaker.recipes._common.data.preparation import TOKENIZER_FOLDER
from lightning_sagemaker.recipes._common.data.ranges import check_range
from lightning_sagemaker.recipes._common.data.remote import RemoteFolder, is_remote
from lightning_sagemaker.recipes._common.modules.losses import IGNORED
from lightning_sagemaker.recipes.albert_mlm.masking import UNITS, Masking, Vocabulary, chance_of
from lightning_sagemaker.recipes.albert_mlm.packing import Words, swap_segments
from lightning_sagemaker.recipes.albert_mlm.prepare import Preparation
from lightning_sagemaker.recipes.albert_mlm.shards import Shards
from lightning_sagemaker.recipes.albert_mlm.streamed import StreamedShards, describe_fetched, open_streamed
from lightning_sagemaker.recipes.albert_mlm.text import find_own_text, find_text, prepared_folder
from lightning_sagemaker.recipes.albert_mlm.tokenizer import TRAIN, load_tokenizer

Batch = dict[str, Tensor]


class MaskedSequences(Dataset[Batch]):
    """Masked sequences by draw; complete batches are created at once.

    Args:
        shards: Shards of one split.
        masking: Chooses and hides tokens.
        seed: Decides which sequences have their two segments swapped.

    """

    depends_on_indices_only = True

    def __init__(self, shards: Shards | StreamedShards, masking: Masking, seed: int) -> None:
        self.shards = shards
        self._masking = masking
        self._seed = seed

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, draws: list[int]) -> Batch:
        """One batch.

        Returns:
            ``input_ids`` ``[B, length]``, ``positions`` and ``labels`` ``[B, masked]``, ``index`` ``[B]``; with two
            segments also ``token_type_ids`` ``[B, length]`` and ``swapped`` ``[B]``, 1 if the segments are swapped.

        """
        numbers = np.asarray(draws, dtype=np.int64)
        indices = sample_indices(draws, len(self))
        rows, first = self.shards.rows(indices), self.shards.first_segments(indices)
        segments = {}
        if first is not None:
            swapped = chance_of(self._seed, numbers) < 0.5
            other, other_first = swap_segments(rows, first)
            rows, first = np.where(swapped[:, None], other, rows), np.where(swapped, other_first, first)
            types = (np.arange(rows.shape[1]) > first[:, None] + 1).astype(np.int64)
            segments = {"token_type_ids": types, "swapped": np.where(numbers < 0, IGNORED, swapped).astype(np.int64)}
        tokens, positions, labels = self._masking(rows, numbers)
        index = np.where(numbers < 0, numbers, indices)
        arrays = {"input_ids": tokens, "positions": positions, "labels": labels, "index": index, **segments}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class MLMDataModule(RecipeData):
    """Batches for masked-language-model training.

    The text is tokenized once per host and kept as memory-mapped shards; hosts may share ``cache_dir`` or not. Masking
    happens on the fly, at different positions in each epoch. Sequences, masks and order depend on ``seed`` only: not on
    the number of processes, workers or accumulated micro-batches.

    Args:
        text: Output of ``lightning-sagemaker prepare albert-mlm``, a folder or ``s3://bucket/prefix``, which is
            streamed; ``builtin`` (prose from Python's own documentation), ``auto`` (the job's ``train`` channel if it
            has one, else builtin), files or folders (see README.md), or the name of a Hugging Face dataset.
        validation: Files, folders or a dataset of their own for validation. Default: the job's ``validation`` channel,
            else a share of ``text``.
        test: The same for testing. Default: the job's ``test`` channel, else a share of ``text``.
        dataset_config: Configuration of a Hugging Face dataset.
        dataset_split: Split of a Hugging Face dataset.
        text_column: Column with the article, of a Hugging Face dataset or of records in files.
        tokenizer: ``auto`` (that of ``model.pretrained``, else ``train``), ``train`` (a SentencePiece-like unigram
            model learned from the text), or a folder or hub name.
        vocab_size: Vocabulary size of a trained tokenizer.
        lowercase: Whether a trained tokenizer lowercases.
        sequence_length: Tokens per sequence including the special ones, usually 128 or 512.
        sentence_order: Build sequences of two segments, swapped in half of them, for sentence-order prediction.
        mask_probability: Share of a sequence's tokens to predict, at most 0.5.
        mask_unit: What is hidden together: ``token``, ``word`` or ``span`` (one to three words).
        global_batch_size: Sequences per optimizer step over all processes and accumulated micro-batches.
        val_fraction: Share of articles for validation, if ``validation`` is not given.
        test_fraction: Share of articles for testing, if ``test`` is not given.
        max_documents: Read no more articles of ``text`` than this.
        cache_gb: Maximum disk space for streamed text in ``cache_dir`` on each host, in gigabytes.
        on_damage: What to do if prepared text is missing or damaged: ``fail``, or ``skip``: train on other sequences
            instead.
        batches: See :class:`~lightning_sagemaker.recipes._common.data.data_module.RecipeData`.

    Raises:
        MisconfigurationException: If a number is out of range, or batch sizes do not divide.

    """

    def __init__(
        self,
        text: str | list[str] = "auto",
        validation: str | list[str] | None = None,
        test: str | list[str] | None = None,
        dataset_config: str | None = None,
        dataset_split: str = "train",
        text_column: str = "text",
        tokenizer: str = "auto",
        vocab_size: int = 30000,
        lowercase: bool = True,
        sequence_length: int = 128,
        sentence_order: bool = False,
        mask_probability: float = 0.15,
        mask_unit: str = "token",
        global_batch_size: int = 256,
        val_fraction: float = 0.05,
        test_fraction: float = 0.01,
        max_documents: int | None = None,
        cache_gb: float = 32.0,
        on_damage: str = "fail",
        **batches: Any,
    ) -> None:
        super().__init__("albert-mlm", global_batch_size, **batches)
        check_range("sequence_length", sequence_length, 16, 1 << 20)
        check_range("mask_probability", mask_probability, 0.0, 0.5)
        check_range("val_fraction", val_fraction, 0.0, 0.5)
        check_range("test_fraction", test_fraction, 0.0, 0.5)
        if mask_unit not in UNITS:
            raise MisconfigurationException(
                f"data.mask_unit={mask_unit!r} was set. HINT: choose one of {', '.join(UNITS)}."
            )
        if on_damage not in ("fail", "skip"):
            raise MisconfigurationException(f"data.on_damage={on_damage!r} was set. HINT: choose fail or skip.")
        self._skip_damaged = on_damage == "skip"
        self._tokenizer_name = tokenizer
        self._remote = RemoteFolder(str(text)) if is_remote(text) else None
        self._cache_bytes = int(cache_gb * 1e9)
        self._prepared = self._remote.local(self.cache) if self._remote else prepared_folder(text, self.job.channels)
        self._settings: dict[str, Any] = {
            "vocab_size": vocab_size,
            "lowercase": lowercase,
            "sequence_length": sequence_length,
            "sentence_order": sentence_order,
            "val_fraction": val_fraction,
            "test_fraction": test_fraction,
            "max_documents": max_documents,
        }
        if self._prepared is None:
            dataset: dict[str, Any] = {"dataset_config": dataset_config, "text_column": text_column}
            self._settings["source"] = find_text(text, self.job.channels, dataset_split=dataset_split, **dataset)
            self._settings |= find_own_text({"validation": validation, "test": test}, self.job.channels, **dataset)
        elif validation or test:
            raise MisconfigurationException(
                f"data.text={str(text)!r} names prepared shards, but data.{'validation' if validation else 'test'} was set."
                " HINT: pass that text to `lightning-sagemaker prepare albert-mlm` by --validation and --test."
            )
        self.sequence_length = sequence_length
        self.sentence_order = sentence_order
        self.num_masked = max(1, round(mask_probability * (sequence_length - 2 - sentence_order)))
        self._mask_unit = mask_unit
        self._splits: dict[str, MaskedSequences] = {}
        self._streamed: StreamedRows | None = None

    def preparation(self) -> Preparation:
        """Settings of the text's preparation."""
        name = (self.pretrained or TRAIN) if self._tokenizer_name == "auto" else self._tokenizer_name
        return Preparation(tokenizer=name, **self._settings)

    @property
    def folder(self) -> Path:
        """Folder of the shards: prepared for these settings, or given as ``text``."""
        return self._prepared or super().folder

    def load_tokenizer(self) -> Any:
        """The tokenizer with which the shards were made."""
        CheckedFiles.of(self.folder).check_folder(TOKENIZER_FOLDER)
        return load_tokenizer(str(self.folder / TOKENIZER_FOLDER))

    def sources(self) -> dict[str, str]:
        """Where the text comes from."""
        own = {name: self._settings.get(name) for name in ("validation", "test")}
        return {"text": str(self._describe()), **{name: text.describe() for name, text in own.items() if text}}

    def facts(self) -> dict[str, Any]:
        """Facts about the data for the model card."""
        return {**self.sources(), "sequences": self.manifest["counts"], "tokens": self.sequence_length}

    def prepare_data(self) -> None:
        """Tokenize the text, once per host, unless ``text`` was prepared before."""
        if self._prepared is None:
            super().prepare_data()
        elif self._remote is not None:
            self._copy_small(self._remote, self._prepared)

    def _copy_small(self, remote: RemoteFolder, folder: Path) -> None:
        try:
            manifest = remote.copy_small(folder)
        except DataReadError as error:
            if self.trainer is None or self.trainer.world_size == 1:
                raise
            self._failure = str(error)
            return
        counts = ", ".join(f"{split} {count}" for split, count in manifest["counts"].items())
        self.say("streaming %s from %s through %s", counts, remote.address, folder)

    def open(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Open the shards."""
        masking = Masking(self._vocabulary(manifest), self.num_masked, self.seed, self._mask_unit)
        files = {
            split: {name: entry for name, entry in manifest["files"].items() if name.startswith(f"{split}-")}
            for split in ("train", "val", "test")
        }
        rows = None
        if self._remote is not None:
            rows = self._streamed = open_streamed(self._remote, folder, manifest, self._cache_bytes, self._skip_damaged)
        for split in (split for split in files if files[split]):
            if rows is None:
                shards: Shards | StreamedShards = Shards(folder, files[split], self._skip_damaged)
            else:
                shards = StreamedShards(rows, split)
            self._splits[split] = MaskedSequences(shards, masking, self.seed)

    def teardown(self, stage: str) -> None:
        """Log how much was fetched from S3."""
        if self._streamed is not None:
            self.say("%s: %s", self._describe(), describe_fetched(self._streamed))

    def read_manifest(self) -> dict[str, Any]:
        """The manifest of the shards.

        Raises:
            MisconfigurationException: If ``text`` names shards that are damaged or do not fit the settings.

        """
        if self._prepared is None:
            return super().read_manifest()
        manifest = load_manifest(self._prepared)
        if manifest is None:
            raise MisconfigurationException(
                f"data.text={str(self._prepared)!r} was set, but the manifest there is damaged. {hint(self._prepared)}"
            )
        here = {"files": manifest.get("others", {})} if self._remote or self._skip_damaged else manifest
        if damaged := damages(self._prepared, here):
            raise MisconfigurationException(
                f"data.text={str(self._prepared)!r} was set, but there {'; '.join(damaged)}. {hint(self._prepared)}"
            )
        for name in ("sequence_length", "sentence_order"):
            if manifest[name] != self._settings[name]:
                raise MisconfigurationException(
                    f"data.{name}={self._settings[name]} was set, but the shards in {self._prepared} were made with"
                    f" {manifest[name]}. HINT: set data.{name}={str(manifest[name]).lower()}, or prepare new ones."
                )
        return manifest

    def _describe(self) -> str:
        if self._remote is not None:
            return self._remote.address
        return str(self._prepared) if self._prepared else str(self._settings["source"].describe())

    def _vocabulary(self, manifest: dict[str, Any]) -> Vocabulary:
        begins = None
        if self._mask_unit != "token":
            tokenizer = self.load_tokenizer()
            ids = (tokenizer.cls_token_id, tokenizer.sep_token_id)
            begins = Words.of(tokenizer.backend_tokenizer, *ids, manifest["special_ids"]).begins
        return Vocabulary(self.vocab_size, tuple(manifest["special_ids"]), manifest["mask_id"], begins)

    def train_dataloader(self) -> RecipeLoader:
        """Shuffled micro-batches of this process."""
        dataset = self._splits["train"]
        loader = self.training_loader(dataset, len(dataset), blocks=dataset.shards.blocks)
        dataset.shards.look_ahead(loader.sampler)
        return loader

    def val_dataloader(self) -> RecipeLoader | list[RecipeLoader]:
        """Each validation sequence once over all processes, always with the same masks."""
        return self._evaluation("val")

    def test_dataloader(self) -> RecipeLoader | list[RecipeLoader]:
        """As :meth:`val_dataloader`, for the test articles."""
        return self._evaluation("test")

    def predict_dataloader(self) -> RecipeLoader | list[RecipeLoader]:
        """The test articles, or the validation articles if there are none."""
        return self._evaluation("test" if "test" in self._splits else "val")

    def _evaluation(self, split: str) -> RecipeLoader | list[RecipeLoader]:
        dataset = self._splits.get(split)
        if dataset is None:
            return []
        loader = self.evaluation_loader(dataset, len(dataset))
        dataset.shards.look_ahead(loader.sampler)
        return loader
