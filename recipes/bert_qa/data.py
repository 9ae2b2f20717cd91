# SPDX-License-Identifier: Apache-2.0
"""Questions and contexts to batches, as a LightningDataModule."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import Dataset

from lightning_sagemaker.recipes._common.batches import Integers, sample_indices
from lightning_sagemaker.recipes._common.cache import read_manifest
from lightning_sagemaker.recipes._common.data import RecipeData, RecipeLoader, check_range
from lightning_sagemaker.recipes._common.pretrained import load_tokenizer
from lightning_sagemaker.recipes._common.ragged import Ragged
from lightning_sagemaker.recipes._common.tables import is_file_name
from lightning_sagemaker.recipes.bert_qa.prepare import BUILTIN, TOKENIZER_FOLDER, Preparation
from lightning_sagemaker.recipes.bert_qa.squad import POLICIES
from lightning_sagemaker.recipes.bert_qa.windows import Template, Windows, answer_labels, cut_windows

_CHANNELS = {"train": ("train", "training"), "val": ("validation", "val"), "test": ("test",), "predict": ("predict",)}
"""Split -> names of SageMaker input channels that ``auto`` looks for, in this order."""

Batch = dict[str, Tensor]


class QuestionWindows(Dataset[Batch]):
    """Windows of one split; whole batches are made at once.

    Args:
        folder: Of the cache.
        split: Its name.
        template: Of the tokenizer.
        max_length: Tokens of an input.
        stride: Tokens that neighbouring windows share.
        pad_id: Of the tokenizer.
        multiple: Lengths are padded to a multiple of it.
        pad_to: Pad every batch to this length instead of its longest input's.

    """

    def __init__(
        self,
        folder: Path,
        split: str,
        template: Template,
        max_length: int,
        stride: int,
        pad_id: int,
        multiple: int,
        pad_to: int | None,
    ) -> None:
        self._contexts = Ragged(folder, f"{split}-context-tokens")
        self._offsets = Ragged(folder, f"{split}-context-offsets")
        self._asked = Ragged(folder, f"{split}-question-tokens")
        self._context, first, last = np.load(folder / f"{split}-questions.npy").T
        self._texts = folder / f"{split}-texts.json"
        self._template = template
        self._pad_id, self._multiple, self._pad_to = pad_id, multiple, pad_to
        lengths = self._contexts.lengths[self._context]
        self.windows: Windows = cut_windows(self._asked.lengths, lengths, template.num_special, max_length, stride)
        around = len(template.before) + len(template.between)
        self._context_start: Integers = self._asked.lengths[self.windows.question] + around
        self._labels = answer_labels(self.windows, first, last, self._context_start)

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def num_questions(self) -> int:
        """Of the split."""
        return len(self._context)

    @property
    def lengths(self) -> Integers:
        """``[windows]``, in tokens."""
        return self._context_start + self.windows.end - self.windows.start + len(self._template.after)

    @functools.cached_property
    def texts(self) -> dict[str, Any]:
        """``contexts``, and ``questions`` with ``id`` and right ``answers``."""
        texts: dict[str, Any] = json.loads(self._texts.read_text(encoding="utf-8"))
        return texts

    def shift(self, windows: Integers) -> Integers:
        """What to add to places in the inputs of ``windows`` to get places in their contexts."""
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
            ``input_ids``, ``attention_mask``, ``token_type_ids``, ``in_context`` ``[B, length]``; ``labels`` ``[B, 2]``,
            the first and last place of the answer; ``index`` ``[B]``.

        """
        indices = sample_indices(draws, len(self))
        needed = self.lengths[indices]
        length = self._pad_to or -(-int(needed.max()) // self._multiple) * self._multiple
        ids = np.full((len(indices), length), self._pad_id, dtype=np.int64)
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


class QuestionAnsweringDataModule(RecipeData):
    """Batches for extractive question answering.

    The data is read and tokenised once per host. Inputs of similar length share a batch.

    Args:
        train: ``auto`` (the job's ``train`` channel, else the embedded facts unless another split is given), ``facts``,
            a file in SQuAD's form or of flat records, a folder of them, or a Hugging Face dataset.
        validation: The same kinds. Default: the job's ``validation`` channel; a dataset's own validation part.
        test: The same kinds. Default: the job's ``test`` channel.
        predict: The same kinds. Default: the test data, else the validation data.
        dataset_config: Configuration of a Hugging Face dataset.
        version_2_with_negative: Whether questions may have no answer in their context.
        max_seq_length: Tokens of an input: question, part of the context, and special tokens.
        doc_stride: Tokens that neighbouring parts of a long context share.
        max_query_length: Tokens of a question; the rest is cut off.
        misplaced_answers: For answers that are not where their record says: ``error``, ``skip`` (leave the questions
            out) or ``search`` (look for the text in the context).
        tokenizer: Folder or hub name. Default: of ``model.pretrained``, else one is trained.
        vocab_size: Tokens of a trained tokenizer.
        global_batch_size: Inputs per optimizer step over all processes and accumulated micro-batches.
        eval_batch_size: Inputs per process and forward pass in evaluation. Default: the global batch, at most 64.
        group_by_length: Put inputs of similar length into a batch.
        pad_to_max_length: Pad every batch to ``max_seq_length``.
        pad_to_multiple_of: Default: 8 on a GPU, 1 otherwise.
        max_train_samples: Use no more questions than this.
        max_eval_samples: Use no more than this for validation and for testing.
        max_predict_samples: Use no more than this.
        num_workers: Loader processes for each training process. Default: the processor cores of each training process
            on a GPU host, none otherwise.
        cache_dir: Where prepared data is kept. Default: the user's cache folder, in a training job a temporary one.
        seed: Of the order. Default: the run's (``seed_everything``).

    Raises:
        MisconfigurationException: If a value is unknown or out of range, or batch sizes do not divide.

    """

    def __init__(
        self,
        train: str | None = "auto",
        validation: str | None = None,
        test: str | None = None,
        predict: str | None = None,
        dataset_config: str | None = None,
        version_2_with_negative: bool = False,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        misplaced_answers: str = "error",
        tokenizer: str | None = None,
        vocab_size: int = 8000,
        global_batch_size: int = 32,
        eval_batch_size: int | None = None,
        group_by_length: bool = True,
        pad_to_max_length: bool = False,
        pad_to_multiple_of: int | None = None,
        max_train_samples: int | None = None,
        max_eval_samples: int | None = None,
        max_predict_samples: int | None = None,
        num_workers: int | None = None,
        cache_dir: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__("bert-qa", global_batch_size, eval_batch_size, num_workers, cache_dir, seed)
        check_range("max_seq_length", max_seq_length, 16, 1 << 20)
        check_range("doc_stride", doc_stride, 0, max_seq_length)
        check_range("max_query_length", max_query_length, 1, max_seq_length - 8)
        if misplaced_answers not in POLICIES:
            raise MisconfigurationException(
                f"data.misplaced_answers={misplaced_answers!r} was set. HINT: choose one of {', '.join(POLICIES)}."
            )
        limits = {"train": max_train_samples, "val": max_eval_samples, "test": max_eval_samples}
        limits["predict"] = max_predict_samples
        self._settings: dict[str, Any] = {
            "files": self._sources({"train": train, "val": validation, "test": test, "predict": predict}),
            "dataset_config": dataset_config,
            "vocab_size": vocab_size,
            "max_query_length": max_query_length,
            "misplaced_answers": misplaced_answers,
            "unanswerable": version_2_with_negative,
            "limits": {split: limit for split, limit in limits.items() if limit is not None},
        }
        self.version_2_with_negative = version_2_with_negative
        self.max_seq_length = max_seq_length
        self._stride = doc_stride
        self._tokenizer_name = tokenizer
        self._group_by_length = group_by_length
        self._multiple = pad_to_multiple_of or (8 if torch.cuda.is_available() else 1)
        self._pad_to = max_seq_length if pad_to_max_length else None
        self._manifest: dict[str, Any] | None = None
        self.splits: dict[str, QuestionWindows] = {}

    def _sources(self, given: dict[str, str | None]) -> dict[str, str]:
        channels = self.job.channels
        found = {
            split: next((str(channels[name]) for name in names if name in channels), None)
            for split, names in _CHANNELS.items()
        }
        others = any(given[split] or found[split] for split in ("val", "test", "predict"))
        if given["train"] == "auto":
            given = {**given, "train": found["train"] or (None if others else BUILTIN)}
        chosen = {split: name or found[split] for split, name in given.items()}
        train = chosen["train"]
        if train and not chosen["val"] and train != BUILTIN and not is_file_name(train):
            chosen["val"] = train  # the dataset's own part
        return {split: name for split, name in chosen.items() if name}

    def _preparation(self) -> Preparation:
        """Known once there is a trainer: the tokenizer is by default that of the model."""
        module = None if self.trainer is None else self.trainer.lightning_module
        pretrained = None if module is None else module.hparams.get("pretrained")
        return Preparation(**self._settings, pretrained=self._tokenizer_name or pretrained)

    @property
    def folder(self) -> Path:
        """The cache of these settings."""
        return self._preparation().folder(self.cache)

    @property
    def manifest(self) -> dict[str, Any]:
        """What is in the cache; after :meth:`setup`."""
        if self._manifest is None:
            raise RuntimeError("the data module was not set up: call prepare_data() and setup() first")
        return self._manifest

    @property
    def vocab_size(self) -> int:
        """Number of tokens; after :meth:`setup`."""
        return int(self.manifest["vocab_size"])

    def load_tokenizer(self) -> Any:
        """The tokenizer of the cache."""
        return load_tokenizer(str(self.folder / TOKENIZER_FOLDER))

    def facts(self) -> dict[str, Any]:
        """For the model card."""
        return {
            "data": ", ".join(f"{split}: {name}" for split, name in self._settings["files"].items()),
            "questions": self.manifest["counts"],
            "inputs": {split: len(windows) for split, windows in self.splits.items()},
        }

    def prepare_data(self) -> None:
        """Read and tokenise, once per host."""
        manifest, made = self._preparation().run(self.cache)
        counts = ", ".join(f"{split} {count}" for split, count in manifest["counts"].items())
        self.say("%s questions: %s in %s", "tokenised" if made else "found", counts, self.folder)

    def setup(self, stage: str) -> None:
        """Open the cache, cut windows, and check that all processes have the same."""
        preparation = self._preparation()
        folder = preparation.folder(self.cache)
        manifest = read_manifest(folder, preparation.settings())
        if manifest is None:
            raise RuntimeError(f"{folder} holds no whole cache, although prepare_data() has run")
        self.check_equal_everywhere(manifest["digest"])
        self._manifest = manifest
        tokenizer = self.load_tokenizer()
        template = Template.of(tokenizer)
        options = (template, self.max_seq_length, self._stride, tokenizer.pad_token_id, self._multiple, self._pad_to)
        self.splits = {
            split: QuestionWindows(folder, split, *options) for split, count in manifest["counts"].items() if count
        }

    def train_dataloader(self) -> RecipeLoader:
        """Shuffled micro-batches of this process."""
        if "train" not in self.splits:
            raise MisconfigurationException("there is no training data. HINT: set data.train.")
        windows = self.splits["train"]
        return self.training_loader(windows, len(windows), self._lengths(windows))

    def val_dataloader(self) -> RecipeLoader | list[RecipeLoader]:
        """Each validation input once over all processes."""
        return self._evaluation("val")

    def test_dataloader(self) -> RecipeLoader | list[RecipeLoader]:
        """Each test input once over all processes."""
        return self._evaluation("test")

    def predict_dataloader(self) -> RecipeLoader | list[RecipeLoader]:
        """Each input to predict once over all processes."""
        return self._evaluation(self.predicted_split)

    @property
    def predicted_split(self) -> str:
        """Which split ``predict`` reads."""
        return next((split for split in ("predict", "test", "val") if split in self.splits), "predict")

    def _evaluation(self, split: str) -> RecipeLoader | list[RecipeLoader]:
        if split not in self.splits:
            return []
        windows = self.splits[split]
        return self.evaluation_loader(windows, len(windows), self._lengths(windows))

    def _lengths(self, windows: QuestionWindows) -> Integers | None:
        return windows.lengths if self._group_by_length else None
