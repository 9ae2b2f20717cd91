# SPDX-License-Identifier: Apache-2.0
"""Reads, splits and tokenises the data into a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.recipes._common import preparation as _preparation
from lightning_sagemaker.recipes._common.checksums import file_entry
from lightning_sagemaker.recipes._common.preparation import TOKENIZER_FOLDER, table_settings
from lightning_sagemaker.recipes._common.pretrained import load_config, load_tokenizer
from lightning_sagemaker.recipes._common.ragged import save_ragged
from lightning_sagemaker.recipes._common.tables import (
    DataError,
    Records,
    find_files,
    is_file_name,
    read_files,
    read_hub,
    require_columns,
)
from lightning_sagemaker.recipes._common.wordpiece import train_wordpiece
from lightning_sagemaker.recipes.sequence_classification import labels as labelling
from lightning_sagemaker.recipes.sequence_classification.glue import TASKS
from lightning_sagemaker.recipes.sequence_classification.labels import LabelScheme, find_scheme
from lightning_sagemaker.recipes.sequence_classification.transactions import transactions

BUILTIN = "transactions"

_FORMAT = 3
"""Raised whenever the same settings would give another cache."""

_BUILTIN_COUNTS = {"train": 8000, "val": 1000, "test": 1000}
_LABEL_COLUMNS = ("label", "labels", "category", "target", "intent", "class")
_HUB_SPLITS = {"train": "train", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class Preparation(_preparation.Preparation):
    """Everything that decides what the cache holds.

    Args:
        files: Split (train, val, test, predict) -> file, folder, hub name or ``transactions``.
        task: Of GLUE, or ``None``.
        dataset_config: Of a hub dataset.
        text_columns: One or two; none: found.
        label_column: ``None``: found.
        label_delimiter: Between several labels in one text.
        label_map: Label in the data -> label to use.
        problem: ``auto`` or one of :data:`~labels.PROBLEMS`.
        pretrained: Of tokenizer and known labels; ``None``: a tokenizer is trained.
        vocab_size: Of a trained tokenizer.
        max_length: Tokens; longer texts are cut.
        fractions: Split -> share of the training data for a split that has no file.
        limits: Split -> most samples.
        seed: Of the split.

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
    seed: int = 0

    def settings(self) -> dict[str, Any]:
        """As plain containers, files and tokenizer by their fingerprints."""
        return table_settings(self, _FORMAT, {BUILTIN: _BUILTIN_COUNTS})

    def build(self, folder: Path) -> dict[str, Any]:
        """Read, tokenise, and write."""
        splits = self._read()
        first = next(iter(splits.values()))
        label_column = self._label_column(first)
        texts = self._text_columns(first, label_column)
        for split, records in splits.items():
            labelled = () if split.startswith("predict") else (label_column,)
            require_columns(records, (*texts, *labelled), f"the {split} data")
        splits = self._divide(splits, label_column)
        splits = {name: records[: self.limits.get(name.split("_")[0])] for name, records in splits.items()}
        scheme = self._scheme(splits, label_column)
        tokenizer = self._tokenizer(splits, texts)
        tokenizer.save_pretrained(str(folder / TOKENIZER_FOLDER))
        paths: list[Path] = []
        for split, records in splits.items():
            paths += self._save(folder, split, records, texts, tokenizer)
            if not split.startswith("predict"):
                values = self._labels(records, label_column)
                path = folder / f"{split}-labels.npy"
                np.save(path, scheme.encode(values, f"the {split} data"))
                paths.append(path)
        return {
            "files": {path.name: file_entry(path) for path in paths},
            "counts": {split: len(records) for split, records in splits.items()},
            "problem": scheme.problem,
            "labels": list(scheme.names),
            "text_columns": list(texts),
            "vocab_size": len(tokenizer),
        }

    def _read(self) -> dict[str, Records]:
        if self.task is not None:
            return self._read_glue()
        splits: dict[str, Records] = {}
        for split, name in self.files.items():
            if name == BUILTIN:
                splits |= {part: transactions(count, part) for part, count in _BUILTIN_COUNTS.items()}
            elif is_file_name(name):
                splits[split] = read_files(find_files(name, f"data.{split}"))
            elif split == "train":
                found = read_hub(name, self.dataset_config, list(_HUB_SPLITS))
                splits |= {_HUB_SPLITS[part]: records for part, records in found.items()}
            else:
                splits[split] = read_hub(name, self.dataset_config, [split])[split]
        return splits

    def _read_glue(self) -> dict[str, Records]:
        assert self.task is not None
        names = dict(TASKS[self.task].splits)
        found = read_hub(self.files["train"], self.task, list(names.values()))
        return {split: found[name] for split, name in names.items() if name in found}

    def _label_column(self, records: Records) -> str:
        if self.label_column is not None:
            return self.label_column
        columns = {column.lower(): column for column in records[0]}
        return next((columns[name] for name in _LABEL_COLUMNS if name in columns), _LABEL_COLUMNS[0])

    def _text_columns(self, records: Records, label_column: str) -> tuple[str, ...]:
        if self.text_columns:
            return self.text_columns
        if self.task is not None:
            return TASKS[self.task].columns
        others = [column for column in records[0] if column != label_column]
        for known in (("text",), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("sentence",)):
            if set(known) <= set(others):
                return known
        if len(others) == 1:
            return (others[0],)
        raise DataError(
            f"it is not clear which of the columns {', '.join(records[0])} hold the text."
            " HINT: set data.text_columns to one or two of them, and data.label_column."
        )

    def _labels(self, records: Records, column: str) -> list[Any]:
        return labelling.clean((record[column] for record in records), self.label_delimiter, self.label_map)

    def _divide(self, splits: dict[str, Records], column: str) -> dict[str, Records]:
        """Take validation and test samples from the training data where they have no file of their own."""
        wanted = {split: share for split, share in self.fractions.items() if share and split not in splits}
        if "train" not in splits or not wanted or self.task is not None or BUILTIN in self.files.values():
            return splits
        records = splits["train"]
        parts = stratified(self._labels(records, column), list(wanted.values()), self.seed)
        divided = {name: [records[i] for i in part] for name, part in zip(["train", *wanted], parts, strict=True)}
        return {**splits, **divided}

    def _scheme(self, splits: Mapping[str, Records], column: str) -> LabelScheme:
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

    def _tokenizer(self, splits: Mapping[str, Records], columns: Sequence[str]) -> Any:
        if self.pretrained is not None:
            return load_tokenizer(self.pretrained)
        return train_wordpiece(
            (str(record[c]) for record in splits["train"] for c in columns),
            self.vocab_size,
        )

    def _save(self, folder: Path, split: str, records: Records, columns: Sequence[str], tokenizer: Any) -> list[Path]:
        texts = [[_text(record[column], column, split) for record in records] for column in columns]
        encoded = tokenizer(*texts, truncation=True, max_length=self.max_length, return_token_type_ids=True)
        firsts = folder / f"{split}-firsts.npy"
        # Token types are 0 for the first text and 1 for the second: how many are 0 says all.
        np.save(firsts, np.array([len(types) - sum(types) for types in encoded["token_type_ids"]], dtype=np.int32))
        return [*save_ragged(folder, split, encoded["input_ids"]), firsts]


def _text(value: Any, column: str, split: str) -> str:
    if value is None:
        raise DataError(f"the {split} data has records without {column!r}. HINT: remove them or fill them in.")
    return str(value)


def stratified(labels: Sequence[Any], shares: Sequence[float], seed: int) -> list[list[int]]:
    """Indices of the rest and of each share, with the classes in the same proportions, each part in order.

    Args:
        labels: Of the samples; several labels together and scores count as one class.
        shares: Of the parts that are taken away.
        seed: Of the choice.

    """
    keys = [str(label) for label in labels]
    if all(_is_score(label) for label in labels):
        keys = [""] * len(labels)
    groups: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    random = np.random.Generator(np.random.PCG64(seed))
    parts: list[list[int]] = [[] for _ in range(len(shares) + 1)]
    bounds = np.cumsum(shares)
    # One quota over all classes: rounding each class by itself would take nothing from the rare ones.
    shuffled: npt.NDArray[np.int64] = np.concatenate([random.permutation(groups[key]) for key in sorted(groups)])
    place = (np.arange(len(shuffled)) * _GOLDEN) % 1.0
    chosen = np.searchsorted(bounds, place, side="right")
    for index, part in zip(shuffled, chosen, strict=True):
        parts[(int(part) + 1) % len(parts)].append(int(index))
    return [sorted(part) for part in parts]


_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are spread evenly over [0, 1) in any stretch of them (Weyl, 1916)."""


def _is_score(label: Any) -> bool:
    return isinstance(label, float)
