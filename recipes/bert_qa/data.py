# SPDX-License-Identifier: Apache-2.0
"""Batches of questions and contexts, as a LightningDataModule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker.recipes._common.data.fine_tuning_data import FineTuningData
from lightning_sagemaker.recipes._common.data.ranges import check_range
from lightning_sagemaker.recipes._common.data.sources import find_sources
from lightning_sagemaker.recipes._common.data.tables import is_file_name
from lightning_sagemaker.recipes.bert_qa.inputs import QuestionWindows
from lightning_sagemaker.recipes.bert_qa.prepare import BUILTIN, Preparation
from lightning_sagemaker.recipes.bert_qa.squad import POLICIES
from lightning_sagemaker.recipes.bert_qa.windows import Template


class QuestionAnsweringDataModule(FineTuningData[QuestionWindows]):
    """Batches for extractive question answering.

    The data is read and tokenized once per host. Inputs of similar length share a batch.

    Args:
        train: ``auto`` (the job's ``train`` channel, else the embedded facts unless another split is given), ``facts``,
            a file in SQuAD's format, a table (CSV, TSV, JSON, JSON lines, Excel, Parquet, Arrow), a folder of such files,
            the address of either in S3, or a Hugging Face dataset.
        validation: The same kinds. Default: the job's ``validation`` channel; a dataset's own validation split.
        test: The same kinds. Default: the job's ``test`` channel.
        predict: The same kinds. Default: the test data, else the validation data.
        version_2_with_negative: Whether questions may have no answer in their context.
        max_seq_length: Maximum tokens of an input: question, part of the context, and special tokens.
        doc_stride: Tokens that neighboring parts of a long context share.
        max_query_length: Maximum tokens of a question; the rest is cut off.
        misplaced_answers: For answers that are not where their record says: ``error``, ``skip`` (leave the questions
            out) or ``search`` (look for the text in the context).
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
        version_2_with_negative: bool = False,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        misplaced_answers: str = "error",
        **common: Any,
    ) -> None:
        super().__init__("bert-qa", max_seq_length, **common)
        check_range("max_seq_length", max_seq_length, 16, 1 << 20)
        check_range("doc_stride", doc_stride, 0, max_seq_length)
        check_range("max_query_length", max_query_length, 1, max_seq_length - 8)
        if misplaced_answers not in POLICIES:
            raise MisconfigurationException(
                f"data.misplaced_answers={misplaced_answers!r} was set. HINT: choose one of {', '.join(POLICIES)}."
            )
        files = find_sources(self.job, train, validation, test, predict, BUILTIN)
        source = files.get("train", BUILTIN)
        if "val" not in files and source != BUILTIN and not is_file_name(source):
            files["val"] = source  # the dataset's own split
        self.settings |= {
            "files": files,
            "max_query_length": max_query_length,
            "misplaced_answers": misplaced_answers,
            "unanswerable": version_2_with_negative,
        }
        self.version_2_with_negative = version_2_with_negative
        self.max_seq_length = max_seq_length
        self._stride = doc_stride

    def preparation(self) -> Preparation:
        """Settings of all splits' preparation."""
        return Preparation(**self.settings, pretrained=self.start)

    def facts(self) -> dict[str, Any]:
        """Facts about the data for the model card."""
        return {
            **super().facts(),
            "questions": self.manifest["counts"],
            "inputs": {split: len(windows) for split, windows in self.splits.items()},
        }

    def open(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Open the splits, and cut their contexts into windows."""
        tokenizer = self.load_tokenizer()
        options = (Template.of(tokenizer), self._stride, self.padding(tokenizer))
        self.splits = {
            split: QuestionWindows(folder, split, *options) for split, count in manifest["counts"].items() if count
        }
