# SPDX-License-Identifier: Apache-2.0
"""Delimited text, read by Python's ``csv``; this module detects the delimiter and refuses malformed tables.

Other readers of such tables guess types as well: ``NA`` becomes a missing value, ``007`` a number. Here all fields stay
text.
"""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lightning_sagemaker.recipes._common.data.joined_records import REMEMBERED, JoinedRecords
from lightning_sagemaker.recipes._common.data.table_rows import plain_name, table_rows

DELIMITERS = (",", ";", "\t", "|")
NAMES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
"""Names of delimiters that are awkward to quote in a shell."""
END_OF_FILE = "\x1a"
"""The last character of files that DOS programs wrote."""

_FIELD_LIMIT = 1 << 30
"""Maximum characters of a field; ``csv``'s default is 131072."""
_SEPARATOR = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)
"""A first line that tells Excel the delimiter."""
_PREAMBLE = 20
"""Number of lines above a header that exports may have."""
_ABOVE = "delete the lines above the header, if there are any"
"""A hint: exports of banks begin with the account and the period."""
_LINE = re.compile(r"[^\r\n]*(?:\r\n|[\r\n])|[^\r\n]+")


class DelimiterError(ValueError):
    """The text is not a valid table, or its delimiter is ambiguous."""


def read_rows(
    lines: Iterator[str], start: str, delimiter: str | None = None, is_cut: bool = False
) -> tuple[str, Iterator[dict[str, Any]]]:
    """How it is read, in words, and the records, each checked as it is read.

    Args:
        lines: Lines of the file, with their line ends.
        start: Its text, or a beginning of it from which the delimiter can be detected.
        delimiter: One character, or one of :data:`NAMES`. ``None``: detected.
        is_cut: Whether the text goes on after ``start``.

    Raises:
        DelimiterError: If a row does not have as many fields as the header, or the delimiter is ambiguous.

    """
    _check_no_nul(start)
    if said := _SEPARATOR.match(start):
        next(lines)
        start, delimiter = start[said.end() :], delimiter or said.group(1)
    is_even = _begins_even if is_cut else _is_even
    chosen = NAMES.get(delimiter, delimiter) if delimiter is not None else _find_delimiter(start, is_even)
    if len(chosen) != 1:
        raise DelimiterError(f"{chosen!r} is not one character. HINT: data.delimiter takes one, or {', '.join(NAMES)}")
    # Files that were appended to each other have marks of their encoding within them.
    # Python's csv module takes a quote after a space for a part of the field.
    header = next(lines_of(start), "")
    is_spaced = f"{chosen} " in header and len(re.findall(f"{re.escape(chosen)}(?! )", header)) == 0
    plain = (line.removeprefix("\ufeff") for line in map(_check_no_nul, lines) if line != END_OF_FILE)
    is_literal = chosen == "\t" and _has_plain_quotes(start, is_cut)
    how = f"delimiter {chosen!r}{', quotes are text' if is_literal else ''}"
    return how, _records(_parse(plain, chosen, is_spaced, is_literal), delimiter=chosen)


def _has_plain_quotes(text: str, is_cut: bool) -> bool:
    """Whether quotes are part of the fields, as in GLUE's files and by the definition of text/tab-separated-values.

    So it is where they cannot be those around fields, and without them each line has the same number of fields.
    """
    if '"' not in text or '""' in text:
        return False
    lines = [line for line in lines_of(text) if line.strip("\r\n")]
    lines = lines[:-1] if is_cut else lines
    if len({line.count("\t") for line in lines}) != 1 or '"' in lines[0]:
        return False
    try:
        for _ in _parse(lines, "\t"):
            pass
    except ValueError:
        return True
    return False


def _records(parsed: Iterator[list[str]], delimiter: str) -> Iterator[dict[str, Any]]:
    rows = table_rows(parsed)
    header = [plain_name(name) for name in next(rows, [])]
    names = _without_spare_columns(header)
    check_names(names)
    width = 0
    for number, row in enumerate(rows, start=1):
        # Some exports end each row, but not the header, with a delimiter.
        width = width or (len(header) if any(row[len(header) :]) else max(len(row), len(header)))
        _check_row(header, width, number, row, delimiter)
        if any(spare := row[len(names) :]):
            value = next(filter(None, spare))
            hint = f"{_ABOVE}; or name or delete it" if number <= _PREAMBLE else "name or delete it"
            raise DelimiterError(f"record {number} has {value!r} in a column without a name. HINT: {hint}")
        yield dict(zip(names, [_unescaped(cell) if cell[:2] == '="' else cell for cell in row], strict=False))


def _unescaped(cell: str) -> str:
    """The text of a cell that begins with ``="``, if it is written as ``="007"``, so that Excel takes it for text."""
    return cell[2:-1] if cell.endswith('"') and cell.count('"') == 2 else cell


def _without_spare_columns(header: list[str]) -> list[str]:
    """Without several nameless columns at its end, which spreadsheets write for cells that were once in use."""
    named = max((place for place, name in enumerate(header, start=1) if name), default=0)
    return header[:named] if named and len(header) - named > 1 else header


def _check_no_nul(text: str) -> str:
    if "\0" in text:
        raise DelimiterError("it contains NUL characters, so it is not a text file. HINT: export it again")
    return text


def _find_delimiter(text: str, is_even: Callable[[str, str], bool]) -> str:
    """The only delimiter that gives the header several columns or, of several such, all rows the same number."""
    possible = [delimiter for delimiter in DELIMITERS if len(_first(text, delimiter)) > 1]
    if len(possible) > 1:
        possible = [delimiter for delimiter in possible if is_even(text, delimiter)] or possible
    if len(possible) > 1:
        raise DelimiterError(
            f"its columns may be separated by {' or '.join(map(repr, possible))}. HINT: set data.delimiter to one of them"
        )
    return possible[0] if possible else ","


def _first(text: str, delimiter: str) -> list[str]:
    try:
        return next((row for row in _parse(lines_of(text), delimiter) if row), [])
    except DelimiterError:
        return []


def _is_even(text: str, delimiter: str) -> bool:
    try:
        return len({len(row) for row in _parse(lines_of(text), delimiter) if row}) == 1
    except DelimiterError:
        return False


def _begins_even(text: str, delimiter: str) -> bool:
    """As :func:`_is_even`, for the beginning of a file, whose last row may be cut off."""
    widths: list[int] = []
    with contextlib.suppress(DelimiterError):
        widths.extend(len(row) for row in _parse(lines_of(text), delimiter) if row)
    return len(set(widths[:-1])) == 1


def lines_of(text: str) -> Iterator[str]:
    """The lines with their line ends, whichever they are; ``io.StringIO`` would need four bytes for a character."""
    return (found.group() for found in _LINE.finditer(text))


def _parse(
    lines: Iterable[str], delimiter: str, is_spaced: bool = False, is_literal: bool = False
) -> Iterator[list[str]]:
    # Line ends are left to the library: within quotes they are part of the field.
    read: list[str] = []
    joined = JoinedRecords(delimiter)
    reader = csv.reader(
        _noted(lines, read),
        delimiter=delimiter,
        skipinitialspace=is_spaced,
        strict=True,
        quoting=csv.QUOTE_NONE if is_literal else csv.QUOTE_MINIMAL,
    )
    try:
        before = csv.field_size_limit(_FIELD_LIMIT)
        try:
            for row in reader:
                if len(read) > 1 or reader.line_num <= REMEMBERED:
                    joined.add(row, read, reader.line_num)
                read.clear()
                yield row
            joined.check()
        finally:
            csv.field_size_limit(before)
    except csv.Error as error:
        raise DelimiterError(
            f"line {reader.line_num} cannot be read with the delimiter {delimiter!r} ({error})."
            " HINT: quote fields that contain the delimiter, a quote or a line break, and double the quotes inside them"
        ) from error


def _noted(lines: Iterable[str], read: list[str]) -> Iterator[str]:
    for line in lines:
        read.append(line)
        yield line


def check_names(names: Sequence[str]) -> None:
    """Refuse duplicate column names.

    Raises:
        DelimiterError: If two names are equal, ignoring case, or several columns have none.

    """
    seen: dict[str, str] = {}
    for place, name in enumerate(names):
        other = seen.setdefault(name.casefold(), name)
        if len(seen) > place:
            continue
        if not name:
            raise DelimiterError(f"several columns have no name in its first line. HINT: {_ABOVE}; or name them")
        raise DelimiterError(f"it has the columns {other!r} and {name!r}. HINT: rename or delete one of them")


def _check_row(header: Sequence[str], width: int, number: int, row: Sequence[str], delimiter: str) -> None:
    if len(row) != width:
        hint = f"quote fields with {delimiter!r} in them, or set data.delimiter"
        if number <= _PREAMBLE:
            hint = f"{_ABOVE}; or {hint}"
        raise DelimiterError(
            f"record {number} does not have as many fields as {'the header' if width == len(header) else 'record 1'}:"
            f" {len(row)} instead of {width}."
            f" HINT: {hint}"
        )
