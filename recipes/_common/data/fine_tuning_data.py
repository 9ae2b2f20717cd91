# SPDX-License-Identifier: Apache-2.0
"""Base class of the data modules for fine-tuning: splits of users' tables, in batches of inputs of similar length."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import Dataset

from lightning_sagemaker.data.batches import Integers
from lightning_sagemaker.recipes._common.data.checked import CheckedFiles
from lightning_sagemaker.recipes._common.data.data_module import RecipeData
from lightning_sagemaker.recipes._common.data.encodings import check_encoding
from lightning_sagemaker.recipes._common.data.loaders import RecipeLoader
from lightning_sagemaker.recipes._common.data.padding import Padding
from lightning_sagemaker.recipes._common.data.ranges import check_range
from lightning_sagemaker.recipes._common.data.record_lines import RecordLines, records_name


class Inputs(Dataset[dict[str, Tensor]]):
    """The inputs of one split; complete batches are created at once."""

    depends_on_indices_only = True

    @abstractmethod
    def __len__(self) -> int:
        """Number of inputs."""

    @property
    @abstractmethod
    def lengths(self) -> Integers:
        """Tokens of each input, ``[inputs]``."""


_Split = TypeVar("_Split", bound=Inputs)


class FineTuningData(RecipeData, Generic[_Split]):
    """Batches of the inputs of a split.

    A subclass completes :attr:`settings`, returns their preparation, and sets :attr:`splits` in :meth:`open`.

    Args:
        name: Name of the recipe.
        limit: Maximum tokens of an input.
        dataset_config: Configuration of a Hugging Face dataset.
        delimiter: Delimiter of text tables: a character, or tab, comma, semicolon, pipe. Default: detected.
        encoding: Encoding of text tables, such as ``utf-8``, ``cp1252`` or ``utf-16``. Default: detected.
        tokenizer: Folder or hub name. Default: that of ``model.pretrained``, else one is trained.
        vocab_size: Vocabulary size of a trained tokenizer.
        group_by_length: Put inputs of similar length into a batch.
        pad_to_max_length: Pad every batch to the maximum tokens of an input.
        pad_to_multiple_of: Pad batches to a multiple of this many tokens. Default: 8 on a GPU, 1 otherwise.
        max_train_samples: Maximum number of samples for training.
        max_eval_samples: Maximum number of samples for validation, and for testing.
        max_predict_samples: Maximum number of samples to predict.
        batches: See :class:`~lightning_sagemaker.recipes._common.data.data_module.RecipeData`.

    Attributes:
        settings: Arguments of the preparation but ``pretrained``; ``files`` has each split's source.
        splits: Split -> its inputs; after :meth:`setup`. A kind of split may have several (``val``, ``val_mismatched``).

    Raises:
        MisconfigurationException: If a value is unknown or out of range.

    """

    builtin: ClassVar[str]
    """Name of the embedded example."""

    settings: dict[str, Any]

    def __init__(
        self,
        name: str,
        limit: int,
        dataset_config: str | None = None,
        delimiter: str | None = None,
        encoding: str | None = None,
        tokenizer: str | None = None,
        vocab_size: int = 8000,
        group_by_length: bool = True,
        pad_to_max_length: bool = False,
        pad_to_multiple_of: int | None = None,
        max_train_samples: int | None = None,
        max_eval_samples: int | None = None,
        max_predict_samples: int | None = None,
        **batches: Any,
    ) -> None:
        super().__init__(name, **batches)
        check_encoding(encoding)
        self.settings = {
            "dataset_config": dataset_config,
            "delimiter": delimiter,
            "encoding": encoding,
            "vocab_size": vocab_size,
            "limits": _limits(max_train_samples, max_eval_samples, max_predict_samples),
        }
        self._limit = limit
        self._tokenizer_name = tokenizer
        self._group_by_length = group_by_length
        self._multiple = pad_to_multiple_of or (8 if torch.cuda.is_available() else 1)
        self._pad_always = pad_to_max_length
        self.splits: dict[str, _Split] = {}

    @property
    def start(self) -> str | None:
        """Where the tokenizer comes from; ``None``: one is trained."""
        return self._tokenizer_name or self.pretrained

    def padding(self, tokenizer: Any) -> Padding:
        """How batches are padded."""
        return Padding(tokenizer.pad_token_id, self._multiple, self._limit, self._pad_always)

    def sources(self) -> dict[str, str]:
        """Split -> file, folder, name of a dataset, or the embedded example."""
        files: dict[str, str] = self.settings["files"]
        return {split: f"{name} (embedded)" if name == self.builtin else name for split, name in files.items()}

    def facts(self) -> dict[str, Any]:
        """Facts about the data for the model card."""
        return {"data": ", ".join(f"{split}: {name}" for split, name in self.settings["files"].items())}

    def train_dataloader(self) -> RecipeLoader:
        """Shuffled micro-batches of this process.

        Raises:
            MisconfigurationException: If there is no training data.

        """
        if "train" not in self.splits:
            raise MisconfigurationException("there is no training data. HINT: set data.train.")
        inputs = self.splits["train"]
        return self.training_loader(inputs, len(inputs), self._lengths(inputs))

    def val_dataloader(self) -> list[RecipeLoader]:
        """Each validation input once over all processes."""
        return self._evaluation(self._of_kind("val"))

    def test_dataloader(self) -> list[RecipeLoader]:
        """Each test input once over all processes."""
        return self._evaluation(self._of_kind("test"))

    def predict_dataloader(self) -> list[RecipeLoader]:
        """Each input of :attr:`predicted_splits` once over all processes."""
        return self._evaluation(self.predicted_splits)

    @property
    def predicted_splits(self) -> list[str]:
        """The splits that ``predict`` reads: those to predict, else for testing, else for validation."""
        return self._of_kind("predict") or self._of_kind("test") or self._of_kind("val")

    def _of_kind(self, kind: str) -> list[str]:
        return [split for split in self.splits if split.split("_")[0] == kind]

    def _evaluation(self, splits: list[str]) -> list[RecipeLoader]:
        found = (self.splits[split] for split in splits)
        return [self.evaluation_loader(inputs, len(inputs), self._lengths(inputs)) for inputs in found]

    def records(self, split: str) -> RecordLines:
        """The records of a split as they were read, in the order of the inputs' origins; not of ``train``."""
        return RecordLines(CheckedFiles.of(self.folder).path(records_name(split)))

    def _lengths(self, inputs: _Split) -> Integers | None:
        return inputs.lengths if self._group_by_length else None


def _limits(train: int | None, evaluation: int | None, predict: int | None) -> dict[str, int]:
    """Split -> maximum number of its records, of those that are limited.

    Raises:
        MisconfigurationException: If a number is not positive.

    """
    for name, limit in (("train", train), ("eval", evaluation), ("predict", predict)):
        check_range(f"max_{name}_samples", limit, 1, 1 << 40)
    found = {"train": train, "val": evaluation, "test": evaluation, "predict": predict}
    return {split: limit for split, limit in found.items() if limit is not None}
