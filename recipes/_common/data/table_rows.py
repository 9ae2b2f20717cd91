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
_ABOUT_COLUMN = re.compile(
    r"\s*(?:\[.*\]|\(.*\)|\{.*\}|<.*>|(?:string|str|text|n?(?:var)?char|(?:big)?int(?:eger)?|float|double|numeric|decimal"
    r"|bool(?:ean)?|date|datetime|timestamp|object|categor(?:y|ical)|nominal|discrete|continuous|meta|class"
    r"|(?:open-ended )?response)(?:\(\d+\))?)\s*",
    re.IGNORECASE | re.DOTALL,
)
"""What some programs write below a name: a type or unit, or, in brackets, a remark or JSON."""
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
        ValueError: If a record repeats the header or is a line of dashes below it, the first seems to be a second row of
            the header, or below an empty row are words in a column of numbers, or numbers in one of words: another table,
            or totals.

    """
    header: list[str] = []
    second: SecondHeader | None = None
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
            if second is None:
                second = SecondHeader(header, row)
            else:
                second.compare(row)
            if below > 0 or number <= _MOST:
                _note(row, kinds, header, number, below > 0)
                below -= 1
        yield row
    if second is not None:
        second.check()


class SecondHeader:
    """Whether the first record is a part of the header: names once more, types or units, as in no other record.

    Args:
        header: Names of the columns.
        row: The first record.

    """

    def __init__(self, header: Sequence[str], row: Sequence[str]) -> None:
        cells = list(zip(header, row, strict=False))
        again = [name for name, cell in cells if len(name) >= _WORD and plain_name(cell) == name]
        alike = [name for name, cell in cells if len(name) >= _WORD and _letters(cell) == _letters(name) != ""]
        self._again = {
            name: place for place, name in enumerate(header) if name in again or (len(alike) > 1 and name in alike)
        }
        self._about = next(filter(None, row), "") if _is_about_columns(row) else ""
        self._has_records = False

    def compare(self, row: Sequence[str]) -> None:
        """Look at another record: a value that occurs in it, too, is none of a header."""
        if self._again:
            self._again = {
                name: place
                for name, place in self._again.items()
                if place >= len(row) or _letters(row[place]) != _letters(name)
            }
        if self._about:
            is_record = not _is_about_columns(row)
            if self._has_records and not is_record:
                self._about = ""
            self._has_records = self._has_records or is_record

    def check(self) -> None:
        """Refuse it.

        Raises:
            ValueError: If it is a part of the header.

        """
        if self._again:
            what = f"repeats the header in the column {next(iter(self._again))!r}"
        elif self._about and self._has_records:
            what = f"has only types or units, such as {self._about[:40]!r}"
        else:
            return
        raise ValueError(f"record 1 {what}, so the header seems to have two rows. HINT: make it one")


def _is_about_columns(row: Sequence[str]) -> bool:
    return any(row) and all(_ABOUT_COLUMN.fullmatch(cell) for cell in row if cell)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


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
