# SPDX-License-Identifier: Apache-2.0
"""Reads, splits and tokenizes the data into a cache."""

from __future__ import annotations

import json
import logging
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lightning_sagemaker.checkpoint.export import save_tokenizer
from lightning_sagemaker.recipes._common.data import preparation as _preparation
from lightning_sagemaker.recipes._common.data.checksums import file_entry
from lightning_sagemaker.recipes._common.data.preparation import TOKENIZER_FOLDER, table_settings
from lightning_sagemaker.recipes._common.data.ragged import save_ragged
from lightning_sagemaker.recipes._common.data.record_lines import records_name, write_record_lines
from lightning_sagemaker.recipes._common.data.sources import option_of
from lightning_sagemaker.recipes._common.data.table import Mapped, Record, Table
from lightning_sagemaker.recipes._common.data.table_sources import local_files
from lightning_sagemaker.recipes._common.data.table_streams import TableForm
from lightning_sagemaker.recipes._common.data.tables import (
    DataError,
    choose_records,
    is_file_name,
    read_hub,
    read_tables,
    require_columns,
    require_split,
)
from lightning_sagemaker.recipes._common.data.wordpiece import train_wordpiece
from lightning_sagemaker.recipes._common.modules.pretrained import load_config, load_tokenizer
from lightning_sagemaker.recipes._common.outputs.text_report import count_everything
from lightning_sagemaker.recipes.sequence_classification import labels as labelling
from lightning_sagemaker.recipes.sequence_classification.cleaning import (
    check_answers,
    check_label_kinds,
    check_labels,
    check_texts,
    clean_records,
)
from lightning_sagemaker.recipes.sequence_classification.columns import find_label_column, find_text_columns
from lightning_sagemaker.recipes.sequence_classification.glue import TASKS
from lightning_sagemaker.recipes.sequence_classification.labels import LabelScheme, find_scheme
from lightning_sagemaker.recipes.sequence_classification.splitting import stratified
from lightning_sagemaker.recipes.sequence_classification.transactions import transactions
from lightning_sagemaker.text_files import write_text

_log = logging.getLogger(__name__)

BUILTIN = "transactions"
REPORT = "report.json"
"""File with the counts of the data report."""

_FORMAT = 9
"""Version of the cache, incremented whenever the same settings would give another."""

_AT_ONCE = 1000
"""Texts that are tokenized together: their tokens take ten times as much memory as they do afterwards."""

_BUILTIN_COUNTS = {"train": 8000, "val": 1000, "test": 1000}
_HUB_SPLITS = {"train": "train", "val": "validation", "test": "test", "predict": "test"}


@dataclass(frozen=True)
class Preparation(_preparation.Preparation):
    """All settings that determine the content of the cache.

    Args:
        files: Split (train, val, test, predict) -> file, folder, hub name or ``transactions``.
        task: Name of a GLUE task, or ``None``.
        dataset_config: Configuration of a hub dataset.
        text_columns: One or two columns; empty: found by name.
        label_column: Column of the label; ``None``: found by name.
        label_delimiter: Delimiter between several labels in one value.
        label_map: Label in the data -> label to use.
        problem: ``auto`` or one of :data:`~labels.PROBLEMS`.
        pretrained: Folder or hub name of tokenizer and known labels; ``None``: a tokenizer is trained.
        vocab_size: Vocabulary size of a trained tokenizer.
        max_length: Maximum tokens of an input; longer texts are cut.
        fractions: Split -> share of the training data for a split without data of its own.
        limits: Split -> maximum number of samples.
        delimiter: Delimiter of the columns of text files; ``None``: detected.
        encoding: Encoding of text files; ``None``: detected.
        clean: Names out of :data:`~cleaning.CLEANINGS`.
        seed: Seed of the split.

    """

    files: Mapping[str, str]
    task: str | None = None
    dataset_config: str | None = None
    text_columns: tuple[str, ...] = ()
    label_column: str | None = None
    label_delimiter: str | None = None
    label_map: Mapping[str, str] = field(default_factory=dict)
    problem: str = "auto"
    pretrained: str | None = None
    vocab_size: int = 8000
    max_length: int = 128
    fractions: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    delimiter: str | None = None
    encoding: str | None = None
    clean: tuple[str, ...] = ()
    seed: int = 0

    def settings(self) -> dict[str, Any]:
        """The settings as plain containers, with fingerprints of files and tokenizer."""
        return table_settings(self, _FORMAT, {BUILTIN: _BUILTIN_COUNTS})

    def build(self, folder: Path) -> dict[str, Any]:
        """Read, tokenize, and write."""
        splits, read = self._read(folder)
        first = next(iter(splits.values()))
        strict = self.task is None and self._is_own(self.files.get("train", ""))
        label_column = self.label_column or find_label_column(first, self.text_columns, strict)
        given = self.text_columns if self.task is None else self.text_columns or TASKS[self.task].columns
        columns = given or find_text_columns(first, label_column)
        if label_column in columns and not all(map(_is_predicted, splits)):
            raise DataError(
                f"the column {label_column!r} is both text and label. HINT: set data.label_column to another."
            )
        for split, records in splits.items():
            labeled = () if _is_predicted(split) else (label_column,)
            require_columns(records, (*columns, *labeled), f"the {split} data")
            check_texts(records, columns, f"the {split} data")
            if labeled:
                check_label_kinds(records, label_column, f"the {split} data")
        splits, cleaned = self._clean(splits, columns, label_column)
        values = (record[label_column] for name in splits if not _is_predicted(name) for record in splits[name])
        labelling.report_unused(values, self.label_delimiter, self.label_map)
        splits = self._divide(splits, label_column)
        splits = {name: records[: self.limits.get(name.split("_")[0])] for name, records in splits.items()}
        scheme = self._scheme(splits, label_column)
        labels = "" if all(map(_is_predicted, splits)) else f", labels in {label_column!r}: {scheme}"
        read = read and [*read, f"texts in {' and '.join(map(repr, columns))}{labels}"]
        tokenizer = self._tokenizer(splits, columns)
        save_tokenizer(tokenizer, folder / TOKENIZER_FOLDER)
        paths, report = self._write(folder, splits, columns, label_column, scheme, tokenizer)
        write_text(folder / REPORT, json.dumps({**report, "cleaned": dict(cleaned), "read": read}))
        return {
            "files": {path.name: file_entry(path) for path in paths},
            "counts": {split: len(records) for split, records in splits.items()},
            "problem": scheme.problem,
            "labels": list(scheme.names),
            "text_columns": list(columns),
            "read": read,
            "vocab_size": len(tokenizer),
        }

    def _write(
        self,
        folder: Path,
        splits: Mapping[str, Table],
        columns: Sequence[str],
        label_column: str,
        scheme: LabelScheme,
        tokenizer: Any,
    ) -> tuple[list[Path], dict[str, Any]]:
        """Write the files of all splits; returns those for the manifest, and the counts of the data report."""
        paths: list[Path] = []
        texts: dict[str, Sequence[tuple[str, ...]]] = {}
        labels: dict[str, list[Any]] = {}
        lengths: dict[str, Sequence[int]] = {}

        def texts_of(record: Record) -> tuple[str, ...]:
            return tuple(_text(record[column]) for column in columns)

        for split, records in splits.items():
            texts[split] = Mapped(texts_of, records)
            saved, lengths[split] = self._save(folder, split, texts[split], tokenizer)
            paths += saved
            if split != "train":
                write_record_lines(folder / records_name(split), records)
            if not _is_predicted(split):
                labels[split] = self._labels(records, label_column)
                path = folder / f"{split}-labels.npy"
                np.save(path, scheme.encode(labels[split], f"the {split} data"))
                paths.append(path)
        is_score = scheme.problem == labelling.REGRESSION
        counted = count_everything(texts, {} if is_score else labels, lengths, self.max_length)
        return paths, {**counted, "regression": is_score}

    def _read(self, folder: Path) -> tuple[dict[str, Table], list[str]]:
        """Split -> records, and how each file was read."""
        if self.task is not None:
            return self._read_glue(folder), []
        splits: dict[str, Table] = {}
        read: list[str] = []
        for split, name in self.files.items():
            if name == BUILTIN:
                splits |= {part: Table.of(transactions(count, part), folder) for part, count in _BUILTIN_COUNTS.items()}
            elif is_file_name(name):
                form = TableForm(self.delimiter, self.encoding)
                with local_files(name, option := option_of(split), folder) as files:
                    found, how = read_tables(files.paths, form, folder, files.root)
                splits[split] = choose_records(found, name, option)
                read += [f"{split}: {files.named(line)}" for line in how]
            else:
                splits |= self._read_hub(split, name, folder)
        return splits, read

    def _read_hub(self, split: str, name: str, folder: Path) -> dict[str, Table]:
        """A split of a hub dataset; for training, those for validation and testing as well, if it has them."""
        wanted = [split, "val", "test"] if split == "train" else [split]
        found = read_hub(name, self.dataset_config, [_HUB_SPLITS[one] for one in wanted], folder)
        require_split(found, _HUB_SPLITS[split], name, option_of(split))
        return {one: found[_HUB_SPLITS[one]] for one in wanted if _HUB_SPLITS[one] in found}

    def _clean(
        self, splits: dict[str, Table], columns: Sequence[str], label_column: str
    ) -> tuple[dict[str, Table], Counter[str]]:
        """Clean and check the user's own files; of published datasets only that there are labels."""
        counts: Counter[str] = Counter()
        result = dict(splits)
        for split, records in splits.items():
            what = f"the {split} data"
            if _is_predicted(split):
                continue
            if split not in self.files and all(record[label_column] is None for record in records):
                _log.info("%s of the dataset has no labels and is left out", what)
                del result[split]
                continue
            is_own = split in self.files and self._is_own(self.files[split])
            if is_own:
                check_answers(records, label_column, what)
            rules = self.clean if is_own else {"drop_empty"}.intersection(self.clean)
            texts, kept = (columns, self.label_map) if is_own else ((), None)
            result[split], changed = clean_records(records, texts, label_column, rules, kept, what)
            counts += changed
            if not result[split]:
                raise DataError(f"{what} has no record with both text and label. HINT: check the file's contents.")
        own = [split for split in result if self._is_own(self.files.get(split, "")) and not _is_predicted(split)]
        values = [value for split in own for value in self._labels(result[split], label_column)]
        if values and self.problem != labelling.REGRESSION and not labelling.are_scores(values):
            check_labels((name for value in values for name in labelling.names_of(value)), "the data")
        return result, counts

    def _is_own(self, name: str) -> bool:
        return bool(name) and self.task is None and name != BUILTIN and is_file_name(name)

    def _read_glue(self, folder: Path) -> dict[str, Table]:
        assert self.task is not None
        names = dict(TASKS[self.task].splits)
        found = read_hub(self.files["train"], self.task, list(names.values()), folder)
        return {split: found[name] for split, name in names.items() if name in found}

    def _labels(self, records: Table, column: str) -> list[Any]:
        return labelling.clean((record[column] for record in records), self.label_delimiter, self.label_map)

    def _divide(self, splits: dict[str, Table], column: str) -> dict[str, Table]:
        """Take validation and test samples from the training data where they have no file of their own."""
        wanted = {split: share for split, share in self.fractions.items() if share and split not in splits}
        if "train" not in splits or not wanted or self.task is not None or BUILTIN in self.files.values():
            return splits
        records = splits["train"]
        parts = stratified(self._labels(records, column), list(wanted.values()), self.seed)
        divided = {name: records.take(part) for name, part in zip(["train", *wanted], parts, strict=True)}
        return {**splits, **divided}

    def _scheme(self, splits: Mapping[str, Table], column: str) -> LabelScheme:
        known: tuple[str, ...] = ()
        if self.pretrained is not None:
            config = load_config(self.pretrained)
            names: dict[Any, str] = dict(config.id2label or {})
            known = tuple(names[index] for index in sorted(names))
            if "train" not in splits:
                problem = {"single_label_classification": "single_label", "multi_label_classification": "multi_label"}
                chosen = problem.get(str(config.problem_type), config.problem_type or "single_label")
                return LabelScheme(chosen, () if chosen == labelling.REGRESSION else known)
        if "train" not in splits:
            raise DataError(
                "there is no training data, and model.pretrained is not set, so the labels are not known."
                " HINT: set data.train, or model.pretrained to a model that was trained for this."
            )
        regression = self.task is not None and TASKS[self.task].regression
        problem_name = labelling.REGRESSION if regression else self.problem
        return find_scheme(self._labels(splits["train"], column), problem_name, known)

    def _tokenizer(self, splits: Mapping[str, Table], columns: Sequence[str]) -> Any:
        if self.pretrained is not None:
            return load_tokenizer(self.pretrained)
        return train_wordpiece(
            (str(record[c]) for record in splits["train"] for c in columns),
            self.vocab_size,
        )

    def _save(
        self, folder: Path, split: str, texts: Sequence[tuple[str, ...]], tokenizer: Any
    ) -> tuple[list[Path], Sequence[int]]:
        """Write a split's tokens; returns the files, and the tokens of each input before it was cut."""
        firsts, lengths = array("i"), array("i")

        def rows() -> Iterator[list[int]]:
            remaining = iter(texts)
            while batch := list(islice(remaining, _AT_ONCE)):
                parts = [list(part) for part in zip(*batch, strict=True)]
                encoded = tokenizer(*parts, truncation=True, max_length=self.max_length, return_token_type_ids=True)
                # Token types are 0 for the first text and 1 for the second: the number of zeros tells both.
                firsts.extend(len(types) - sum(types) for types in encoded["token_type_ids"])
                lengths.extend(self._uncut_lengths(parts, [len(ids) for ids in encoded["input_ids"]], tokenizer))
                yield from encoded["input_ids"]

        paths = save_ragged(folder, split, rows())
        path = folder / f"{split}-firsts.npy"
        np.save(path, np.array(firsts, dtype=np.int32))
        return [*paths, path], lengths

    def _uncut_lengths(self, parts: Sequence[Sequence[str]], cut: list[int], tokenizer: Any) -> list[int]:
        full = [place for place, length in enumerate(cut) if length >= self.max_length]
        if full:
            uncut = tokenizer(*([part[place] for place in full] for part in parts), verbose=False)
            for place, ids in zip(full, uncut["input_ids"], strict=True):
                cut[place] = len(ids)
        return cut


def _is_predicted(split: str) -> bool:
    return split.startswith("predict")


def _text(value: Any) -> str:
    return "" if value is None or value != value else str(value)
