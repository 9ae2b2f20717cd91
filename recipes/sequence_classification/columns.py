# SPDX-License-Identifier: Apache-2.0
"""Finds the columns of texts and labels by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lightning_sagemaker.recipes._common.data.table import Table
from lightning_sagemaker.recipes._common.data.tables import DataError, list_names

_LABELS = ("label", "labels", "category", "target", "intent", "class")
_TEXTS = (
    ("text", "text_pair"),
    ("text",),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence",),
)
"""Names of the text columns, of pairs before those of one of their texts."""
_NO_TEXT = re.compile(r"(.*[_ -])?(id|uuid|guid|index|key|path|file|filename|file_name)|unnamed: 0", re.IGNORECASE)
"""Names of columns that tell records apart, or where their text is."""


def find_label_column(records: Table, texts: Sequence[str], strict: bool) -> str:
    """Name of the label column; the first known name if there is none.

    Args:
        records: Records of one split.
        texts: Names of the text columns, as far as they are given.
        strict: Whether several such columns are refused.

    Raises:
        DataError: If there are several such columns.

    """
    columns = {column.lower(): column for column in records.columns}
    found = [columns[name] for name in _LABELS if name in columns and columns[name] not in texts]
    if len(found) > 1 and strict:
        raise DataError(
            f"it is not clear which of the columns {', '.join(found)} holds the label."
            " HINT: set data.label_column to one of them."
        )
    return found[0] if found else _LABELS[0]


def find_text_columns(records: Table, label: str) -> tuple[str, ...]:
    """Names of the one or two text columns.

    Args:
        records: Records of one split.
        label: Name of the label column.

    Raises:
        DataError: If there are several other columns of unknown names, or what is found has no texts.

    """
    others = [column for column in records.columns if column != label]
    columns = {column.lower(): column for column in others}
    for known in _TEXTS:
        if set(known) <= columns.keys():
            found = tuple(columns[name] for name in known)
            for column in found if label in records.columns else ():
                _check_texts(records, column, f"the column {column!r}")
            return found
    named = [column for column in others if not _NO_TEXT.fullmatch(column)]
    if len(others) > 1 and len(named) == 1 and label in records.columns:
        others = named
    # A single column whose first field is not a name may be a file without a header, whose first text would be lost.
    if len(others) == 1 and (label in records.columns or others[0].isidentifier()):
        besides = f" besides {label!r}" if label in records.columns else ""
        _check_texts(records, others[0], f"the only column{besides} is {others[0]!r}, which")
        return (others[0],)
    raise DataError(
        f"it is not clear which of the columns {list_names(records.columns)} hold the text."
        " HINT: the first row must hold their names; set data.text_columns to one or two of them, and"
        " data.label_column."
    )


def _check_texts(records: Table, column: str, what: str) -> None:
    if _NO_TEXT.fullmatch(column) or not any(_has_letter(record[column]) for record in records):
        raise DataError(
            f"{what} seems to hold no texts: {str(records[0][column])[:60]!r}. HINT: give a table with the texts; or, if"
            f" these are the texts, set data.text_columns={column}."
        )


def _has_letter(value: object) -> bool:
    return not isinstance(value, str | int | float | None) or any(map(str.isalpha, str(value or "")))
