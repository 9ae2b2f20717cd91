# SPDX-License-Identifier: Apache-2.0
"""Tables in files that are not delimited text: JSON, JSON lines, Excel workbooks."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from lightning_sagemaker.recipes._common.data.delimited import check_names
from lightning_sagemaker.recipes._common.data.table_rows import plain_name, table_rows

Records = list[dict[str, Any]]

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""The escape of a half of a character."""
_ESCAPE = re.compile(r"\\(?:(u[dD][89abAB]..)(?:\\u[dD][c-fC-F]..)|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""An escape: a character in two halves, a half alone, which is in the second group, or another."""

NO_RECORDS = 'it is not a list of records. HINT: give [{...}, ...], {"data": [...]}, or an object in each line'


def parse_json(text: str) -> Records:
    """Records from a JSON array, an object with ``data`` or of columns, or an object in each line; no key: ``None``.

    Raises:
        ValueError: If the text is none of these, or an object has a key twice.

    """
    rows = _rows_of(text)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(NO_RECORDS)
    names = list(dict.fromkeys(name for row in rows for name in row))
    check_names(names)
    return [{name: row.get(name) for name in names} for row in rows]


def _rows_of(text: str) -> Any:
    if not text.strip():
        return []
    try:
        content = load(text)
    except json.JSONDecodeError as error:
        lines = text.split("\n")  # not splitlines(), which also splits at U+2028 within a string
        if not error.msg.startswith("Extra data") or len(lines) < 2:
            raise
        return [_line(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    return _rows_of_object(content) if isinstance(content, dict) else content


def _rows_of_object(content: dict[str, Any]) -> Any:
    """The rows of ``data``, of an object by id, or of the forms of pandas' ``to_json``; else the object is a row."""
    data, columns = content.get("data"), content.get("columns")
    if isinstance(data, list):
        if columns is None:
            return data
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise ValueError(NO_RECORDS)
        return [dict(zip(columns, row, strict=True)) for row in data]
    parts = list(content.values())
    if len(parts) > 1 and all(isinstance(part, list) for part in parts) and len(set(map(len, parts))) == 1:
        return [dict(zip(content, row, strict=True)) for row in zip(*parts, strict=True)]
    if len(parts) > 1 and all(isinstance(part, dict) and part.keys() == parts[0].keys() for part in parts):
        if all(map(str.isdecimal, parts[0])):
            return [{name: part[row] for name, part in content.items()} for row in parts[0]]
        if all(map(str.isdecimal, content)):
            return parts
    if len(parts) > 1 and all(isinstance(part, dict) for part in parts):
        # A table is longer than wide: of ids and columns, the ids are more.
        names = set().union(*parts)
        if len(parts) > len(names):
            has_id = any(name.casefold() == "id" for name in names)
            return [part if has_id else {"id": key, **part} for key, part in content.items()]
        if len(parts) < len(names) and all(part.keys() == names for part in parts):
            return [{name: part[key] for name, part in content.items()} for key in parts[0]]
    return [content]


def _line(number: int, line: str) -> Any:
    try:
        return load(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is not JSON ({error}). HINT: give an object in each line") from error


def load(text: str) -> Any:
    """A value in JSON.

    Raises:
        ValueError: If it is no JSON, or an object has a key twice.

    """
    # pandas writes NaN for a missing value.
    return json.loads(sound_json(text), object_pairs_hook=unique, parse_constant=lambda _: None)


def sound_json(text: str) -> str:
    """JSON with U+FFFD in place of halves of characters, as programs write them that cut texts off; none can be encoded."""
    if not _SURROGATE.search(text):
        return text
    return _ESCAPE.sub(lambda found: "\\ufffd" if found[2] else found[0], text)


def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dictionary; an ``object_pairs_hook``.

    Raises:
        ValueError: If a key occurs twice.

    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {twice!r} twice. HINT: rename or delete one of them")
    return found


def read_excel(data: bytes) -> Records:
    """Records of the only visible sheet with content of an ``.xlsx`` file; cells as text, integers without a fraction.

    Raises:
        ValueError: If several sheets have content, or several columns have the same name or none.
        ModuleNotFoundError: If neither python-calamine nor openpyxl is installed.

    """
    sheets = {name: rows for name, rows in _sheets(data).items() if any(any(row) for row in rows)}
    if len(sheets) > 1:
        raise ValueError(f"it has the sheets {', '.join(sheets)}. HINT: keep one, or export it as CSV")
    if not sheets:
        return []
    first, *body = table_rows(next(iter(sheets.values())))
    # Tables may begin in any column, and end before cells that were once in use.
    used = [place for place, name in enumerate(first) if plain_name(name) or any(row[place] for row in body)]
    header = [plain_name(first[place]) for place in used]
    check_names(header)
    return [{name: row[place] for name, place in zip(header, used, strict=True)} for row in body]


def _sheets(data: bytes) -> dict[str, list[list[str]]]:
    """Rows of each sheet that is not hidden."""
    try:
        import python_calamine
    except ModuleNotFoundError:
        return _sheets_by_openpyxl(data)
    book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
    visible = python_calamine.SheetVisibleEnum.Visible
    sheets = {one.name: book.get_sheet_by_name(one.name) for one in book.sheets_metadata if one.visible == visible}
    return {
        # Old releases do not tell which cells are merged.
        name: _cells(_filled(sheet.to_python(skip_empty_area=False), getattr(sheet, "merged_cell_ranges", None) or ()))
        for name, sheet in sheets.items()
    }


def _sheets_by_openpyxl(data: bytes) -> dict[str, list[list[str]]]:
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("neither python-calamine nor openpyxl") from error
    book = openpyxl.load_workbook(io.BytesIO(data), data_only=True)
    return {
        sheet.title: _cells(
            _filled(
                list(map(list, sheet.iter_rows(values_only=True))),
                [
                    ((cells.min_row - 1, cells.min_col - 1), (cells.max_row - 1, cells.max_col - 1))
                    for cells in sheet.merged_cells.ranges
                ],
            )
        )
        for sheet in book.worksheets
        if sheet.sheet_state == "visible"
    }


def _filled(rows: list[list[Any]], merged: Iterable[tuple[tuple[int, int], tuple[int, int]]]) -> list[list[Any]]:
    """The rows, with the value of cells that are merged down in each row: only the first holds it."""
    for (top, left), (bottom, _) in merged:
        for row in rows[top + 1 : bottom + 1]:
            row[left : left + 1] = rows[top][left : left + 1]
    return rows


def _cells(rows: Any) -> list[list[str]]:
    """Cells as text, without the empty rows before the first with content."""
    cells = [[_text(cell) for cell in row] for row in rows]
    first = next((number for number, row in enumerate(cells) if any(row)), len(cells))
    return cells[first:]


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return cell if isinstance(cell, str) else str(cell)
