# SPDX-License-Identifier: Apache-2.0
"""A table of predictions: the input's columns, followed by new ones."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

INDEX = "index"
"""Column with the record's number in the input, from 0 on, if the input has none of this name."""


def predictions_table(index: Sequence[int], records: Sequence[Mapping[str, Any]], added: Mapping[str, Any]) -> str:
    """The text of a CSV file: the input's columns unchanged and in order, then the predictions.

    Args:
        index: Number of each record in the input.
        records: Records of the input, all with the same columns.
        added: Name of a new column -> a value for each record. If the input has such a column, as an output of an
            earlier prediction has, the new one is called ``new_NAME``.

    """
    inputs = list(records[0]) if records else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    first = [] if INDEX in inputs else [INDEX]
    writer.writerow([*first, *inputs, *(_new_name(name, inputs) for name in added)])
    for number, record, *values in zip(index, records, *added.values(), strict=True):
        own = [number] if first else []
        writer.writerow([*own, *(_cell(record[name]) for name in inputs), *values])
    return text.getvalue()


def _new_name(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name = f"new_{name}"
    return name


def _cell(value: Any) -> Any:
    """Lists and dictionaries as JSON, other values unchanged."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
