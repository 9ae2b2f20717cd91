# SPDX-License-Identifier: Apache-2.0
"""Batches of questions and contexts, as a LightningDataModule."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker.recipes._common.data.encodings import check_encoding
from lightning_sagemaker.recipes._common.data.fine_tuning_data import FineTuningData, limits
from lightning_sagemaker.recipes._common.data.loaders import RecipeLoader
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
        dataset_config: Configuration of a Hugging Face dataset.
        version_2_with_negative: Whether questions may have no answer in their context.
        max_seq_length: Maximum tokens of an input: question, part of the context, and special tokens.
        doc_stride: Tokens that neighboring parts of a long context share.
        max_query_length: Maximum tokens of a question; the rest is cut off.
        misplaced_answers: For answers that are not where their record says: ``error``, ``skip`` (leave the questions
            out) or ``search`` (look for the text in the context).
        delimiter: Delimiter of text tables: a character, or tab, comma, semicolon, pipe. Default: detected.
        encoding: Encoding of text tables, such as ``utf-8``, ``cp1252`` or ``utf-16``. Default: detected.
        tokenizer: Folder or hub name. Default: that of ``model.pretrained``, else one is trained.
        vocab_size: Vocabulary size of a trained tokenizer.
        global_batch_size: Inputs per optimizer step over all processes and accumulated micro-batches.
        per_process_batch_size: Inputs per process and forward pass; instead of the global batch, which then grows with
            the number of processes.
        eval_batch_size: Inputs per process and forward pass in evaluation. Default: the global batch, at most 64.
        group_by_length: Put inputs of similar length into a batch.
        pad_to_max_length: Pad every batch to ``max_seq_length``.
        pad_to_multiple_of: Pad batches to a multiple of this many tokens. Default: 8 on a GPU, 1 otherwise.
        max_train_samples: Maximum number of questions for training.
        max_eval_samples: Maximum number of questions for validation, and for testing.
        max_predict_samples: Maximum number of questions to predict.
        num_workers: Loader processes for each training process. auto: on a GPU host the CPU cores per training process,
            otherwise 0; then adjusted in the first steps if they wait for data.
        cache_dir: Folder for prepared data. Default: the user's cache folder, in a training job a temporary one.
        seed: Seed of the order of inputs. Default: the run's (``seed_everything``).

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
        dataset_config: str | None = None,
        version_2_with_negative: bool = False,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
        misplaced_answers: str = "error",
        delimiter: str | None = None,
        encoding: str | None = None,
        tokenizer: str | None = None,
        vocab_size: int = 8000,
        global_batch_size: int = 32,
        per_process_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        group_by_length: bool = True,
        pad_to_max_length: bool = False,
        pad_to_multiple_of: int | None = None,
        max_train_samples: int | None = None,
        max_eval_samples: int | None = None,
        max_predict_samples: int | None = None,
        num_workers: int | Literal["auto"] | None = "auto",
        cache_dir: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            "bert-qa",
            max_seq_length,
            tokenizer,
            group_by_length,
            pad_to_max_length,
            pad_to_multiple_of,
            global_batch_size=global_batch_size,
            per_process_batch_size=per_process_batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            cache_dir=cache_dir,
            seed=seed,
        )
        check_range("max_seq_length", max_seq_length, 16, 1 << 20)
        check_range("doc_stride", doc_stride, 0, max_seq_length)
        check_range("max_query_length", max_query_length, 1, max_seq_length - 8)
        if misplaced_answers not in POLICIES:
            raise MisconfigurationException(
                f"data.misplaced_answers={misplaced_answers!r} was set. HINT: choose one of {', '.join(POLICIES)}."
            )
        check_encoding(encoding)
        files = find_sources(self.job, train, validation, test, predict, BUILTIN)
        source = files.get("train", BUILTIN)
        if "val" not in files and source != BUILTIN and not is_file_name(source):
            files["val"] = source  # the dataset's own split
        self.settings = {
            "files": files,
            "dataset_config": dataset_config,
            "vocab_size": vocab_size,
            "max_query_length": max_query_length,
            "misplaced_answers": misplaced_answers,
            "unanswerable": version_2_with_negative,
            "delimiter": delimiter,
            "encoding": encoding,
            "limits": limits(max_train_samples, max_eval_samples, max_predict_samples),
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
        """The split that ``predict`` reads: ``predict``, else ``test``, else ``val``."""
        return next((split for split in ("predict", "test", "val") if split in self.splits), "predict")

    def _evaluation(self, split: str) -> RecipeLoader | list[RecipeLoader]:
        return self.evaluation(split) if split in self.splits else []
