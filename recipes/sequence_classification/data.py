# SPDX-License-Identifier: Apache-2.0
"""Batches of texts and labels, as a LightningDataModule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker.recipes._common.data.checked import CheckedFiles
from lightning_sagemaker.recipes._common.data.fine_tuning_data import FineTuningData
from lightning_sagemaker.recipes._common.data.ranges import check_range
from lightning_sagemaker.recipes._common.data.sources import find_sources
from lightning_sagemaker.recipes._common.data.table import Mapped, Record
from lightning_sagemaker.recipes.sequence_classification.cleaning import CLEANINGS
from lightning_sagemaker.recipes.sequence_classification.glue import SOURCE, TASKS
from lightning_sagemaker.recipes.sequence_classification.labels import (
    PROBLEMS,
    SINGLE,
    LabelScheme,
    class_weights,
    given_weights,
)
from lightning_sagemaker.recipes.sequence_classification.prepare import BUILTIN, REPORT, Preparation
from lightning_sagemaker.recipes.sequence_classification.texts import Texts


class ClassificationDataModule(FineTuningData[Texts]):
    """Batches for classification or regression of texts and pairs of texts.

    The data is read, split and tokenized once per host. Texts of similar length share a batch.

    Args:
        train: ``auto`` (the job's ``train`` channel, else the embedded transactions unless another split is given),
            ``transactions``, a CSV, TSV, JSON, JSON-lines, Excel, Parquet or Arrow file, a folder of them, the address of
            either in S3, or a Hugging Face dataset.
        validation: The same kinds. Default: the job's ``validation`` channel, else taken from the training data.
        test: The same kinds. Default: the job's ``test`` channel, else taken from the training data.
        predict: The same kinds, without labels. Default: the test data, else the validation data.
        task: Name of a GLUE task; then ``train`` may name another copy of the benchmark than the hub's.
        text_columns: Columns with the one or two texts. Default: found by name.
        label_column: Column with the label. Default: found by name.
        label_delimiter: Delimiter between several labels of one text.
        label_map: Label in the data -> label to use; can merge labels.
        clean: Cleanings, separated by commas: ``strip`` (spaces around and within labels), ``unicode`` (their NFKC
            form), ``casefold`` (their case), ``drop_empty`` (drop records without text or label). Default: such labels
            and records are an error.
        problem: ``auto``, ``single_label``, ``multi_label`` or ``regression``.
        class_weights: ``balanced``, or class -> weight in the loss. Default: all classes weigh the same.
        max_length: Maximum tokens of an input; longer texts are cut.
        val_fraction: Share of the training data for validation, if ``validation`` is not given.
        test_fraction: Share of the training data for testing, if neither ``validation`` nor ``test`` is given.
        common: See :class:`~lightning_sagemaker.recipes._common.data.fine_tuning_data.FineTuningData` and
            :class:`~lightning_sagemaker.recipes._common.data.data_module.RecipeData`.

    Raises:
        MisconfigurationException: If a value is unknown or out of range, or batch sizes do not divide.

    """

    builtin = BUILTIN

    def __init__(
        self,
        train: str | None = "auto",
        validation: str | None = None,
        test: str | None = None,
        predict: str | None = None,
        task: str | None = None,
        text_columns: list[str] | str | None = None,
        label_column: str | None = None,
        label_delimiter: str | None = None,
        label_map: dict[str, str] | None = None,
        clean: str | None = None,
        problem: str = "auto",
        class_weights: str | dict[str, float] | None = None,
        max_length: int = 128,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        **common: Any,
    ) -> None:
        super().__init__("sequence-classification", max_length, **common)
        check_range("max_length", max_length, 4, 1 << 20)
        check_range("val_fraction", val_fraction, 0.0, 0.5)
        check_range("test_fraction", test_fraction, 0.0, 0.5)
        _check_choice("problem", problem, ("auto", *PROBLEMS))
        if task is not None:
            _check_choice("task", task, tuple(TASKS))
        if isinstance(class_weights, str):
            _check_choice("class_weights", class_weights, ("balanced",))
        cleanings = [name.strip() for name in (clean or "").split(",") if name.strip()]
        for name in cleanings:
            _check_choice("clean", name, CLEANINGS)
        columns = [text_columns] if isinstance(text_columns, str) else text_columns or []
        if len(columns) > 2:
            raise MisconfigurationException(f"data.text_columns={columns} was set. HINT: give one or two columns.")
        files = find_sources(self.job, train, validation, test, predict, SOURCE if task else BUILTIN)
        fractions = {} if "val" in files else {"val": val_fraction, "test": test_fraction}
        self.settings |= {
            "files": files,
            "task": task,
            "text_columns": tuple(columns),
            "label_column": label_column,
            "label_delimiter": label_delimiter,
            "label_map": label_map or {},
            "clean": tuple(sorted(cleanings)),
            "problem": problem,
            "max_length": max_length,
            "fractions": fractions,
            "seed": self.seed,
        }
        self.task = task
        self.max_length = max_length
        self._class_weights = class_weights

    def preparation(self) -> Preparation:
        """Settings of all splits' preparation."""
        return Preparation(**self.settings, pretrained=self.start)

    @property
    def scheme(self) -> LabelScheme:
        """Problem and classes; after :meth:`setup`."""
        return LabelScheme(self.manifest["problem"], tuple(self.manifest["labels"]))

    @property
    def weights(self) -> list[float] | None:
        """Weight of each class in the loss, ``None`` if all are the same; after :meth:`setup`.

        Raises:
            MisconfigurationException: If weights are set and the problem is not ``single_label``.

        """
        if self._class_weights is None or "train" not in self.splits:
            return None
        labels = self.splits["train"].labels
        assert labels is not None
        if self.scheme.problem != SINGLE:
            raise MisconfigurationException(
                f"data.class_weights was set, but the problem is {self.scheme.problem}."
                f" HINT: only {SINGLE} has class weights."
            )
        if isinstance(self._class_weights, str):
            return class_weights(labels, len(self.scheme.names))
        return given_weights(labels, self.scheme.names, self._class_weights)

    def facts(self) -> dict[str, Any]:
        """Facts about the data for the model card."""
        return {
            **({"data": self.task} if self.task else super().facts()),
            "samples": self.manifest["counts"],
            "problem": self.scheme.problem,
            "labels": list(self.scheme.names),
        }

    def open(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Open the splits."""
        padding = self.padding(self.load_tokenizer())
        self.splits = {split: Texts(folder, split, padding) for split, count in manifest["counts"].items() if count}

    def can_test(self) -> bool:
        """Whether there is a test split with labels; after :meth:`setup`."""
        tests = [texts for name, texts in self.splits.items() if name.split("_")[0] == "test"]
        return bool(tests) and all(texts.labels is not None for texts in tests)

    def report(self) -> dict[str, Any]:
        """The data report; after :meth:`setup`."""
        report: dict[str, Any] = json.loads(CheckedFiles.of(self.folder).read_text(REPORT))
        return report

    def texts(self, split: str) -> Sequence[tuple[str, ...]]:
        """The one or two texts of each sample of a split; not of ``train``."""
        columns = self.manifest["text_columns"]

        def texts_of(record: Record) -> tuple[str, ...]:
            return tuple(str(record[column]) for column in columns)

        return Mapped(texts_of, self.records(split))


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise MisconfigurationException(f"data.{name}={value!r} was set. HINT: choose one of {', '.join(choices)}.")
