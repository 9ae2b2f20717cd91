# SPDX-License-Identifier: Apache-2.0
"""Refuses labels that a reader of the table would ask about; each message names the option that answers."""

from __future__ import annotations

import itertools
import json
import math
import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

from lightning_sagemaker.recipes._common.data.tables import DataError

CODE = re.compile(r"[-+]?0\d")
"""The beginning of a code, such as 04.2: numbers are not written so."""
_UNIT = re.compile(r"^\s*[€$£¥]\s*|\s*([€$£¥%]|[A-Z]{3})\s*$")
_NUMBER = re.compile(r"[-+]?(\d+|\d{1,3}(([.'\u2019\s]\d{3})+|(,\d{3})+))([.,]\d+)?")
_JOINING = "|;,#/<\t\n "
"""Delimiters by which tables join several labels."""
_AROUND = f"{_JOINING}>"
"""Characters around labels that are joined, as in ``<python><pandas>``."""
_FRACTION = re.compile(r"[.,]\d+$")


def number_of(value: Any) -> float | None:
    """A label as a finite number; ``None`` if it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def check_lists(values: Sequence[Any]) -> None:
    """Refuse lists that name no classes, such as a 0 or 1 for each class, or the labels of several annotators."""
    lists = [value for value in values if isinstance(value, list)]
    for one in lists:
        if len(set(one)) < len(one):
            _refuse_list(one, f"it has {next(part for part in one if one.count(part) > 1)!r} twice")
        if fractions := [part for part in one if isinstance(part, float)]:
            _refuse_list(one, f"it has the number {fractions[0]!r}")
    if len(lists) > 1 and len({frozenset(one) for one in lists}) == 1:
        _refuse_list(lists[0], "all have the same classes")


def check_unlabeled(values: Sequence[Any]) -> None:
    """Refuse lists of no label if all others have one: exports of annotation tools hold what is not annotated yet, too."""
    counts = {len(value) for value in values if isinstance(value, list)}
    if counts == {0, 1}:
        raise DataError(
            f"{list(values).count([])} of {len(values)} records have no class, and each other has one. HINT: delete those"
            " that nobody has labeled; if they belong to no class, set data.problem=multi_label."
        )


def check_single(values: Sequence[Any], what: str) -> None:
    """Refuse lists of other than one label, where each record has one class."""
    for number, value in enumerate(values, start=1):
        if isinstance(value, list) and len(value) != 1:
            raise DataError(
                f"{what} has {len(value)} labels in record {number}: {str(value)[:60]}, but data.problem=single_label takes"
                " one. HINT: leave data.problem at auto, or give each record one label."
            )


def _refuse_list(value: list[Any], why: str) -> None:
    raise DataError(
        f"the label {str(value)[:60]} is no list of a text's classes: {why}."
        ' HINT: write the names of the classes that each text has, as in ["a", "b"].'
    )


def check_scores(texts: Collection[str]) -> None:
    """Refuse numbers that are the same, but differ as texts: codes such as 4.1 and 4.10 are no scores."""
    fractions = sorted((text for text in texts if float(text) % 1), key=lambda text: (float(text), text))
    for one, other in itertools.pairwise(fractions):
        if float(one) == float(other):
            raise DataError(
                f"the labels {one!r} and {other!r} are the same number, but not the same text."
                " HINT: set data.problem to regression if the labels are scores, or to single_label if they are codes."
            )


def check_classes(texts: Collection[str]) -> None:
    """Refuse classes that are numbers with a fraction, written otherwise or beside a few other values."""
    plain = [_UNIT.sub("", text) for text in texts]
    are_numbers = all(map(_NUMBER.fullmatch, plain)) and not any(map(CODE.match, plain))
    if are_numbers and any(map(_FRACTION.search, plain)) and None in map(number_of, texts):
        raise DataError(
            f"the labels are numbers with a fraction, such as {max(texts, key=len)!r}, not all of which are written"
            " like 1234.5. HINT: write them so if they are scores; if such a field holds several labels, set"
            " data.label_delimiter; if they are names of classes, set data.problem=single_label."
        )
    fractions = {text for text in texts if (number_of(text) or 0) % 1 and not CODE.match(text)}
    if len(fractions) > len(texts) / 2:
        raise DataError(
            f"{len(fractions)} of {len(texts)} different labels are numbers with a fraction, but not"
            f" {min(set(texts) - fractions)!r}. HINT: if they are scores, drop or correct the others and set"
            " data.problem=regression; if they are names of classes, set data.problem=single_label."
        )


def check_joined(texts: Collection[str]) -> None:
    """Refuse labels that consist of others, which may mean several labels."""
    alone = {text.strip(_AROUND) for text in texts}
    for delimiter in _JOINING:
        joined = []
        for text in sorted(texts):
            parts = [part.strip(_AROUND) for part in text.strip(_AROUND).split(delimiter)]
            if len(parts) > 1 and alone.issuperset(parts):
                joined.append(text)
        # A name may consist of two other words, but hardly several names do.
        if len(joined) > (delimiter == " "):
            raise DataError(
                f"the label {joined[0]!r} consists of other labels. HINT: if it means several labels, set"
                f" data.label_delimiter={delimiter!r}; if it is the name of a class, set data.problem=single_label."
            )


def check_placeholders(texts: Collection[str]) -> None:
    """Refuse labels of punctuation only, such as a dash where there is none, if all others have letters or digits."""
    marks = [text for text in texts if not any(map(str.isalnum, text))]
    if 0 < len(marks) < len(texts) and all(unicodedata.category(char)[0] in "PZ" for char in "".join(marks)):
        raise DataError(
            f"the label {min(marks)!r} has neither letters nor digits, as others have. HINT: if it means no label, drop such"
            f" records with --data.clean drop_empty --data.label_map '{json.dumps({min(marks): ''})}'; if it is the name of"
            " a class, set data.problem=single_label."
        )
