# SPDX-License-Identifier: Apache-2.0
"""The records of one file of any of the known kinds, one after the other.

A text file of moderate size is read whole, so that every character of it tells its encoding and delimiter. Of a larger one
the first MiB does, and it is not held in memory.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lightning_sagemaker.recipes._common.data.class_names import named_classes
from lightning_sagemaker.recipes._common.data.delimited import check_names, lines_of, read_rows
from lightning_sagemaker.recipes._common.data.encodings import decode, find_encoding
from lightning_sagemaker.recipes._common.data.json_records import holds_records, stream_json, stream_json_lines
from lightning_sagemaker.recipes._common.data.workbooks import parse_json, read_excel

Record = dict[str, Any]

JSON = (".json", ".jsonl", ".ndjson")
START = 1 << 20
"""Bytes from which format and encoding are detected."""
UNPACKED = 4
"""Approximate characters of text per byte of a compressed file."""

_WHOLE = 1 << 26
"""Maximum bytes of a text file that is read into memory."""
_JSON_OBJECTS = 4
"""At least so many times as much memory as their text take the objects of a JSON file."""
_PARQUET_ROWS = 1024
_OFFICE = b"PK\x03\x04"
_OTHERS = {
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"\xd0\xcf\x11\xe0": "an Excel 97 document",
    b"%PDF": "a PDF document",
    b"SQLite format": "an SQLite database",
    b"{\\rtf": "an RTF document",
    b"%!PS": "a PostScript document",
    b"WARC/": "a WARC archive of web pages",
    b"version https://git-lfs": "a pointer to the file, which Git LFS stores. HINT: run `git lfs pull`",
}
"""First bytes of a file -> kind of a file that cannot be read, with a hint, if it has one of its own."""
_MARKUP = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype\s+html|html|\?xml|mediawiki)\b", re.IGNORECASE)
_ARROW_FILE, _ARROW_STREAM = b"ARROW1\0\0", b"\xff\xff\xff\xff"
_OBJECT = re.compile(r'\s*(\[\s*)?\{\s*"[^"\n]*"\s*:')


@dataclass(frozen=True)
class TableForm:
    """How a text file with a table is written.

    Args:
        delimiter: Delimiter of columns. ``None``: detected.
        encoding: Python's name. ``None``: detected.

    """

    delimiter: str | None = None
    encoding: str | None = None


def is_large(path: Path, name: str) -> bool:
    """Whether a file is not read into memory.

    Args:
        path: The file.
        name: Its name without the suffix of its compression.

    """
    size = path.stat().st_size * (1 if name == path.name else UNPACKED)
    return size > (_WHOLE // _JSON_OBJECTS if name.lower().endswith(JSON) else _WHOLE)


def buffered(stream: IO[bytes]) -> io.BufferedReader:
    """The stream with a buffer for the bytes that its kind is detected from."""
    return io.BufferedReader(stream, START)  # type: ignore[arg-type] # what reads bytes is enough


def encoding_of(start: bytes) -> str:
    """The encoding of a text that begins so.

    Raises:
        UnknownEncodingError: If it cannot be detected.

    """
    whole_lines = start[: start.rfind(b"\n") + 1]
    return find_encoding(whole_lines or start[:-3])


def stream_table(
    name: str, stream: io.BufferedReader, large: bool, form: TableForm | None = None
) -> tuple[str, Iterator[Record]]:
    """How the file is read, in words, and its records.

    Args:
        name: Name of the file without the suffix of its compression.
        stream: Its unpacked content, from :func:`buffered`.
        large: Whether a text is streamed.
        form: How a text is written.

    Raises:
        ValueError: If it cannot be read, also while records are read.
        ModuleNotFoundError: Likewise, if a package is missing.

    """
    form = form or TableForm()
    start = stream.peek(START)
    check_kind(start, "unpack it, or export it as CSV")
    if start.startswith(b"PAR1"):
        return "Parquet", _parquet(stream)
    if start.startswith((_ARROW_FILE, _ARROW_STREAM)):
        return "Arrow", _arrow(stream, start.startswith(_ARROW_FILE))
    if start.startswith(_OFFICE):
        return "Excel", _excel(stream.read())
    return _large_text(name, stream, form) if large else _whole_text(name, stream.read(), form)


def check_kind(start: bytes, hint: str) -> None:
    """Refuse a file that is neither a table nor text.

    Args:
        start: Its first bytes.
        hint: What to do with it.

    Raises:
        ValueError: If it is a document of another kind.

    """
    found = next((what for mark, what in _OTHERS.items() if start.startswith(mark)), None)
    if what := found or ("an HTML or XML document" if _MARKUP.match(start) else None):
        raise ValueError(f"it is {what}{'' if 'HINT:' in what else f'. HINT: {hint}'}")


def is_json(name: str, begin: str) -> bool:
    """Whether a text is JSON: by the name of its file, or because it begins with an object, alone or in an array."""
    return name.lower().endswith(JSON) or _OBJECT.match(begin) is not None


def _whole_text(name: str, data: bytes, form: TableForm) -> tuple[str, Iterator[Record]]:
    text, encoding = decode(data, form.encoding)
    if is_json(name, text):
        return f"JSON, {encoding}", iter(parse_json(text))
    how, records = read_rows(lines_of(text), text, form.delimiter)
    return f"{how}, {encoding}", records


def _large_text(name: str, stream: io.BufferedReader, form: TableForm) -> tuple[str, Iterator[Record]]:
    start = stream.peek(START)
    encoding = form.encoding or encoding_of(start)
    text = io.TextIOWrapper(stream, encoding, newline="")
    begin = start.decode(encoding, "ignore").removeprefix("\ufeff")
    if is_json(name, begin):
        return f"JSON, {encoding}", stream_json_lines(text) if is_json_lines(begin) else stream_json(text)
    lines = itertools.chain([text.readline().removeprefix("\ufeff")], text)
    how, records = read_rows(lines, begin, form.delimiter, is_cut=True)
    return f"{how}, {encoding}", records


def is_json_lines(begin: str) -> bool:
    """Whether the first line is a record, rather than an object of records or of columns."""
    try:
        first = json.loads(begin.lstrip().split("\n", 1)[0])
    except ValueError:
        return False
    return isinstance(first, dict) and not isinstance(first.get("data"), list) and not holds_records(first)


def _excel(data: bytes) -> Iterator[Record]:
    if b"xl/workbook" not in data:
        raise ValueError("it is an office document. HINT: unpack it, or export it as CSV")
    return iter(read_excel(data))


def _parquet(stream: io.BufferedReader) -> Iterator[Record]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(_seekable(stream))
    check_names(file.schema_arrow.names)
    yield from _rows(file.iter_batches(batch_size=_PARQUET_ROWS), file.schema_arrow)


def _arrow(stream: io.BufferedReader, is_file: bool) -> Iterator[Record]:
    """Records of Arrow's two formats: the one of Feather, and the one in which the package `datasets` saves to disk."""
    import pyarrow.ipc

    opened = pyarrow.ipc.open_file(_seekable(stream)) if is_file else pyarrow.ipc.open_stream(stream)
    check_names(opened.schema.names)
    batches = map(opened.get_batch, range(opened.num_record_batches)) if is_file else opened
    parts = (
        batch.slice(begin, _PARQUET_ROWS) for batch in batches for begin in range(0, batch.num_rows, _PARQUET_ROWS)
    )
    yield from _rows(parts, opened.schema)


def _seekable(stream: io.BufferedReader) -> IO[bytes]:
    return stream if stream.seekable() else io.BytesIO(stream.read())


def _rows(batches: Iterable[Any], schema: Any) -> Iterator[Record]:
    """Records of batches; class labels by their names, which the package `datasets` writes into the schema."""
    notes = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    records = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    return named_classes(records, notes.get("info", {}).get("features", {}))
