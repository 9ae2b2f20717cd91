# SPDX-License-Identifier: Apache-2.0
"""The rows of one table, as a reader of a sheet tells them from empty rows, repeated headers, and what is below it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

_UNSEEN = "\\s\ufeff\u200b-\u200f\u2060"
_AROUND = re.compile(f"^[{_UNSEEN}]+|[{_UNSEEN}]+$")
_RULE = re.compile(r"\s*:?[-=]{2,}:?\s*")
_LEAST = 3
"""Number of adjacent records that tell what a column holds."""
_MOST = 1000
"""Number of records from which that is determined."""
_BELOW = 2
"""Number of rows below an empty one that tell whether another table begins: its header and its first record."""
_WORD = 3
"""Minimum characters of a name that is no value by chance, as ``A`` in a column ``A`` may be."""
_WORDS, _OTHERS = 1, 2
"""What a column holds: values with letters, or values without."""


def plain_name(name: str) -> str:
    """A column's name without spaces and invisible characters around it."""
    return _AROUND.sub("", name)


def table_rows(rows: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    """The header and the records; empty rows are left out.

    Args:
        rows: All rows, with the header first; in an empty one no cell has text.

    Raises:
        ValueError: If a record repeats the header (the first, a part of it) or is a line of dashes below it, or below an
            empty row are words in a column of numbers, or numbers in one of words: another table, or totals.

    """
    header: list[str] = []
    kinds: list[int] = []
    number = adjacent = below = 0
    for row in rows:
        if not row or (header and len(row) > 1 and not any(row)):
            below, adjacent = (_BELOW if adjacent >= _LEAST else below), 0
            continue
        if not header:
            header = [plain_name(cell) for cell in row]
            kinds = [0] * len(header)
        else:
            number, adjacent = number + 1, adjacent + 1
            if number == 1 and all(map(_RULE.fullmatch, row)):
                raise ValueError(f"record 1 is a line of {row[0].strip()[:3]}. HINT: delete it")
            if header[0] in row[0] and _is_header(row, header):
                raise ValueError(f"record {number} repeats the header. HINT: delete it")
            if number == 1 and (
                again := [name for name, cell in zip(header, row, strict=False) if _repeats(cell, name)]
            ):
                raise ValueError(
                    f"record 1 repeats the header in the column {again[0]!r}, so the header seems to have two rows."
                    " HINT: make it one"
                )
            if below > 0 or number <= _MOST:
                _note(row, kinds, header, number, below > 0)
                below -= 1
        yield row


def _repeats(cell: str, name: str) -> bool:
    return len(name) >= _WORD and plain_name(cell) == name


def _is_header(row: Sequence[str], header: Sequence[str]) -> bool:
    return len(row) > 1 and [plain_name(cell) for cell in row[: len(header)]] == header


def _note(row: Sequence[str], kinds: list[int], header: Sequence[str], number: int, is_below: bool) -> None:
    for place, (cell, kind) in enumerate(zip(row, kinds, strict=False)):
        if cell and (is_below or kind != _WORDS | _OTHERS):
            found = _WORDS if any(map(str.isalpha, cell)) else _OTHERS
            if is_below and kind and not kind & found:
                raise ValueError(
                    f"below an empty row, record {number} has {cell[:40]!r} in the column {header[place]!r}, where"
                    f" {'words' if kind == _WORDS else 'numbers'} are above it. HINT: if another table or totals begin"
                    " there, delete them, else the empty row"
                )
            kinds[place] |= found
