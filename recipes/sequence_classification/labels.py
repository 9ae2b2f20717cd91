# SPDX-License-Identifier: Apache-2.0
"""Encodes the values of a label column as numbers: one class, several classes or a score per text."""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.recipes._common.data.tables import DataError
from lightning_sagemaker.recipes.sequence_classification.label_checks import (
    CODE,
    check_classes,
    check_joined,
    check_lists,
    check_placeholders,
    check_scores,
    check_single,
    check_unlabeled,
    number_of,
)

SINGLE, MULTI, REGRESSION = "single_label", "multi_label", "regression"
PROBLEMS = (SINGLE, MULTI, REGRESSION)

_log = logging.getLogger(__name__)

_NAMED = 5
"""Maximum number of labels in a message."""
_ADJACENT = re.compile(r"""['"]\s+['"]""")
_SET = re.compile(r"^(frozen)?set(?=\(.*\)$)", re.DOTALL)
"""The name with which Python prints a set that is empty or frozen."""
_LISTS = ("[]", "()", "{}")
"""Brackets around lists, tuples and sets."""
_CLOSING = {"<": ">", "[": "]", "(": ")", "{": "}"}
"""Delimiter of labels in brackets -> the end of each of them."""
_MANY = 10
"""Number of records of which some have the same label if there are classes to learn."""


@dataclass(frozen=True)
class LabelScheme:
    """The kind of problem and its classes.

    Args:
        problem: One of :data:`PROBLEMS`.
        names: Names of the classes, by number; empty for regression.

    """

    problem: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.problem}, {len(self.names)} classes" if self.names else self.problem

    def encode(self, values: Sequence[Any], what: str) -> npt.NDArray[np.float32]:
        """The labels of a split: ``[samples]`` class numbers or scores, or ``[samples, classes]`` of 0 and 1.

        Raises:
            DataError: If a label was not seen in training, is not a number in regression, or is not the only one of its
                record although the problem is :data:`SINGLE`.

        """
        if self.problem == REGRESSION:
            return _scores(values, what)
        number = {name: index for index, name in enumerate(self.names)}
        unknown = Counter(name for value in values for name in names_of(value) if name not in number)
        if unknown:
            named = ", ".join(f"{name!r} ({count})" for name, count in unknown.most_common(_NAMED))
            raise DataError(
                f"{what} has {unknown.total()} labels that are not in the training data: {named}."
                f" HINT: the labels are {', '.join(self.names[:20])}; correct them, map them with data.label_map, or"
                " give training samples of each."
            )
        if self.problem == SINGLE:
            check_single(values, what)
            return np.fromiter((number[names_of(value)[0]] for value in values), np.float32, len(values))
        encoded = np.zeros((len(values), len(self.names)), dtype=np.float32)
        for row, value in zip(encoded, values, strict=True):
            row[[number[name] for name in names_of(value)]] = 1
        return encoded


def clean(values: Iterable[Any], delimiter: str | None, label_map: Mapping[str, str]) -> list[Any]:
    """Labels as text or lists of text, renamed by ``label_map``; numbers stay numbers for regression.

    Args:
        values: Entries of the label column.
        delimiter: Delimiter between several labels in one value; ``None``: values are not split, but lists that were
            written as text, in JSON or as Python prints them, are read.
        label_map: Label in the data -> label to use.

    Raises:
        DataError: If some of the values are such lists, and the others are similar but cannot be read.

    """
    known: dict[str, str] = {}  # equal texts once in memory
    values = list(values)
    if delimiter is None:
        values = _read_lists(values)

    def one(value: Any) -> Any:
        if delimiter is not None and isinstance(value, str):
            closing = _CLOSING.get(delimiter, "")
            value = [part.strip().removesuffix(closing) for part in value.split(delimiter) if part.strip()]
        if isinstance(value, list | tuple):
            parts = [label_map.get(str(part), part) for part in value]
            return list(dict.fromkeys(parts)) if label_map or delimiter else parts
        value = label_map.get(str(value), value)
        return known.setdefault(value, value) if isinstance(value, str) else value

    return [one(value) for value in values]


def report_unused(values: Iterable[Any], delimiter: str | None, label_map: Mapping[str, str]) -> None:
    """Warn of names in ``label_map`` that no label has, such as misspelled ones; arguments as for :func:`clean`."""
    if label_map and (labels := clean(values, delimiter, {})):
        names = {name for label in labels for name in names_of(label)}
        if unused := sorted(set(label_map) - names):
            _log.warning("data.label_map names %s, which no label of the data is", ", ".join(map(repr, unused)))


def _read_lists(values: list[Any]) -> list[Any]:
    texts = {value: _SET.sub("", value.strip()) for value in values if isinstance(value, str)}
    if objects := [value for value, text in texts.items() if _is_object(text)]:
        raise DataError(
            f"{len(objects)} labels are objects written as text, such as {objects[0]!r}."
            " HINT: data.label_column takes a column of names, numbers or lists of them."
        )
    if not values or not all(value in texts and _brackets(texts[value]) in _LISTS for value in map(str, values)):
        return values
    lists = {value: _list_of(text) for value, text in texts.items()}
    unread = [value for value, found in lists.items() if found is None]
    if len(unread) == len(lists) and not any(map(_ADJACENT.search, unread)):
        return values  # names in brackets
    if unread:
        raise DataError(
            f"the labels are lists written as text, of which {len(unread)} cannot be read, such as {unread[0]!r}."
            ' HINT: write them in JSON, as in ["a", "b"]; or separate labels by a character and set'
            " data.label_delimiter."
        )
    return [lists[value] for value in values]


def _brackets(text: str) -> str:
    return text[:1] + text[-1:]


def _is_object(text: str) -> bool:
    if _brackets(text) != "{}":
        return False
    found = _parse(text)
    return isinstance(found, dict) or (found is None and '"' in text)


def _parse(text: str) -> Any:
    """The value that a text stands for in JSON or Python; ``None`` if it is neither."""
    for parse in (json.loads, ast.literal_eval):
        # A NumPy array has no commas: Python would read adjacent texts as one.
        with contextlib.suppress(ValueError, SyntaxError):
            return None if _ADJACENT.search(text) else parse(text)
    return None


def _list_of(text: str) -> list[Any] | None:
    found = _parse(text)
    if not isinstance(found, list | tuple | set):
        return None
    if not all(isinstance(part, str | int) for part in found):
        raise DataError(
            f"the labels are lists of other things than names, such as {text[:60]!r}."
            " HINT: data.label_column takes a column of names, numbers or lists of them."
        )
    return sorted(found, key=str) if isinstance(found, set) else list(found)


def find_scheme(values: Sequence[Any], problem: str, known: Sequence[str] = ()) -> LabelScheme:
    """The scheme of training labels.

    Args:
        values: Labels of the training split, from :func:`clean`.
        problem: One of :data:`PROBLEMS`, or ``auto``: lists are several labels, numbers with a fraction are scores.
        known: Labels of the pretrained model; their order is kept if they are the same labels.

    Raises:
        DataError: If there are fewer than two classes, or as many as records, or with ``auto`` it is not clear whether
            numbers are scores, or records without a class are labeled.

    """
    if problem == "auto":
        problem = _detect(values)
        texts = {value for value in values if isinstance(value, str)}
        if problem == REGRESSION:
            check_scores(texts)
        elif problem == MULTI:
            check_unlabeled(values)
        elif problem == SINGLE and all(isinstance(value, str) for value in values):
            check_joined(texts)
            check_classes(texts)
            check_placeholders(texts)
    if problem == REGRESSION:
        return LabelScheme(REGRESSION)
    if problem == MULTI:
        check_lists(values)
    names = {name for value in values for name in names_of(value)}
    if len(names) < 2:
        raise DataError(
            f"the training labels are all {names or 'missing'}. HINT: at least two different ones are needed."
        )
    if problem == SINGLE and len(names) == len(values) >= _MANY:
        raise DataError(
            f"each of the {len(values)} training records has a label of its own, such as {values[0]!r}, as ids and dates"
            " have. HINT: set data.label_column to the column with the classes; data.problem=regression takes scores."
        )
    by_lowercase = {name.lower(): name for name in names}
    if len(by_lowercase) == len(names) and {name.lower() for name in known} == set(by_lowercase):
        return LabelScheme(problem, tuple(by_lowercase[name.lower()] for name in known))
    ordered = sorted(names, key=int) if all(name.lstrip("-").isdecimal() for name in names) else sorted(names)
    return LabelScheme(problem, tuple(ordered))


def class_weights(labels: npt.NDArray[np.float32], num_classes: int) -> list[float]:
    """For each class the inverse of its share, scaled so that the mean over the samples is 1."""
    counts = np.bincount(labels.astype(np.int64), minlength=num_classes)
    return [float(len(labels) / (np.count_nonzero(counts) * count)) if count else 0.0 for count in counts]


def given_weights(labels: npt.NDArray[np.float32], names: Sequence[str], weights: Mapping[str, float]) -> list[float]:
    """A weight for each class, 1 if not given, scaled so that the mean over the samples is 1.

    Raises:
        DataError: If a weight is not positive, or its class is unknown.

    """
    wrong = [name for name, weight in weights.items() if name not in names or weight <= 0]
    if wrong:
        raise DataError(
            f"data.class_weights gives a weight to {', '.join(map(repr, wrong))}."
            f" HINT: weights must be positive, and the classes are {', '.join(names[:20])}."
        )
    raw = np.array([weights.get(name, 1.0) for name in names])
    return [float(weight) for weight in raw / raw[labels.astype(np.int64)].mean()]


def are_scores(values: Sequence[Any]) -> bool:
    """Whether all labels are numbers, and some have a fraction."""
    has_fraction = False
    for value in values:
        number = number_of(value)
        if number is None or (isinstance(value, str) and CODE.match(value)):
            return False
        has_fraction = has_fraction or number % 1 != 0
    return has_fraction


def _detect(values: Sequence[Any]) -> str:
    if any(isinstance(value, list) for value in values):
        return MULTI
    return REGRESSION if are_scores(values) else SINGLE


def names_of(value: Any) -> list[str]:
    """The label, or each of several labels, as text."""
    return [str(part) for part in value] if isinstance(value, list) else [str(value)]


def _scores(values: Sequence[Any], what: str) -> npt.NDArray[np.float32]:
    numbers = [number_of(value) for value in values]
    wrong = [row for row, number in enumerate(numbers) if number is None]
    if wrong:
        raise DataError(
            f"{what} has {len(wrong)} labels that are not numbers, the first in record {wrong[0] + 1}:"
            f" {values[wrong[0]]!r}. HINT: data.problem=regression needs numbers; single_label takes names."
        )
    return np.array(numbers, dtype=np.float32)
