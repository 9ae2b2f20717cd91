# SPDX-License-Identifier: Apache-2.0
"""Articles in files of any common kind: lines, WikiExtractor's, JSON lines, Parquet and TFRecords as streams; tables."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from lightning_sagemaker.recipes._common.data.delimited import END_OF_FILE
from lightning_sagemaker.recipes._common.data.encodings import UnknownEncodingError
from lightning_sagemaker.recipes._common.data.table_streams import (
    JSON,
    START,
    buffered,
    check_kind,
    encoding_of,
    is_json,
    is_json_lines,
    is_large,
    stream_table,
)
from lightning_sagemaker.recipes._common.data.tables import (
    DataError,
    NoRecordsError,
    is_table_name,
    list_names,
    read_files,
)
from lightning_sagemaker.recipes._common.data.unpacked import inner_name, open_unpacked
from lightning_sagemaker.recipes._common.data.workbooks import sound_json
from lightning_sagemaker.recipes.albert_mlm.layout import foreign_text, layout_remark
from lightning_sagemaker.recipes.albert_mlm.records import (
    Decoder,
    begins_with_record,
    read_examples,
    read_texts,
)

LINES = "lines"
"""Format of text files with an article on each line."""
RECORDS = "TFRecords"
_ARTICLE_BEGINS = re.compile(r'<doc id="[^"]*" .*>\s*$')
_WORDS = 3
"""Maximum words of a column's name: more are the first text of a table without a header."""
_ARTICLE_ENDS = "</doc>"
_WIKI_EXTRACTOR = re.compile(r"wiki_\d+")

_log = logging.getLogger(__name__)
_said: set[Path] = set()


class TextSourceError(ValueError):
    """The text cannot be read."""


class EmptyTableError(TextSourceError):
    """A table has no records."""


def is_text_name(name: str) -> bool:
    """Whether a file's name is that of text, compressed or not: ``*.txt``, or as WikiExtractor names its files."""
    plain = inner_name(name.lower())
    return plain.endswith(".txt") or _WIKI_EXTRACTOR.fullmatch(plain) is not None


def kind_of(path: Path) -> str:
    """The format of a file's articles: :data:`LINES`, or the name of another format.

    Raises:
        TextSourceError: If the file cannot be read.

    """
    with _errors(path), open_unpacked(path) as (name, stream):
        return _kind(name, buffered(stream))


def report_layout(path: Path) -> None:
    """Warn if each line of a file is an article of its own, though it seems to have several lines for each."""
    with contextlib.suppress(TextSourceError), _errors(path), open_unpacked(path) as (name, packed):
        stream = buffered(packed)
        if _kind(name, stream) == LINES and (remark := layout_remark(_beginning(stream))):
            _log.warning("%s: %s", path, remark)


def read_articles(path: Path, column: str, tokenizer: Path | None = None) -> Iterator[str]:
    """The articles of a file, in order.

    Args:
        path: Path of the file.
        column: Column with the article, where records have several.
        tokenizer: Folder of the tokenizer with which token ids in the file were made.

    Raises:
        TextSourceError: If the file cannot be read, or a record has no text in that column.

    """
    with _errors(path), open_unpacked(path) as (name, packed):
        stream = buffered(packed)
        kind = _kind(name, stream)
        if kind == "table" and is_large(path, name):
            yield from _texts(_one_column(stream_table(name, stream, True)[1], column, path), column, path)
        elif kind == "table":
            yield from _texts(read_files([path]), column, path)
        elif kind == "parquet":
            yield from _texts(_parquet_rows(stream, column, path), column, path)
        elif kind == RECORDS:
            yield from read_texts(read_examples(stream), partial(_decoder, path, tokenizer), column)
        else:
            yield from _READERS[kind](_lines(stream, path), column, path)


def _one_column(records: Iterator[dict[str, Any]], column: str, path: Path) -> Iterator[dict[str, Any]]:
    """The records with the article's column only, which the first record determines."""
    wanted = None
    for record in records:
        wanted = wanted or _column_of(list(record), column, path)
        yield {name: record[name] for name in {wanted, column} if name in record} or {wanted: None}


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except TextSourceError:
        raise
    except DataError as error:  # whose hint names options of the recipes with tables
        reason = str(error).split(" HINT:")[0]
        kind = EmptyTableError if isinstance(error, NoRecordsError) else TextSourceError
        raise kind(f"{reason} HINT: save it as UTF-8 with commas, or as JSON lines.") from error
    except UnicodeDecodeError as error:
        raise TextSourceError(
            f"{path} is not valid {error.encoding.upper()} throughout ({error})."
            " HINT: convert it, for example with iconv -t UTF-8."
        ) from error
    except UnknownEncodingError as error:
        hint = "HINT: convert it, for example with iconv -f cp1250 -t UTF-8"
        raise TextSourceError(
            f"{path}: {error}." if "HINT:" in str(error) else f"{path} is not valid UTF-8: {error}. {hint}."
        ) from error
    except ModuleNotFoundError as error:
        raise TextSourceError(
            f"{path} needs a package that is not installed ({error}). HINT: pip install 'lightning-sagemaker[tables]'."
        ) from error
    except (OSError, ValueError) as error:
        reason = str(error) if "HINT:" in str(error) else f"{error}. HINT: check the file's contents"
        raise TextSourceError(f"{path} cannot be read: {reason}.") from error


def _kind(name: str, stream: io.BufferedReader) -> str:
    start = stream.peek(START)
    check_kind(start, "extract its text; that of Wikipedia's dumps, for example, with WikiExtractor")
    if start.startswith(b"PAR1"):
        return "parquet"
    if begins_with_record(start):
        return RECORDS
    if is_table_name(name) and not name.lower().endswith(JSON):
        return "table"
    text = _beginning(stream).lstrip()
    first = text.split("\n", 1)[0]
    if first.startswith("{") and is_json_lines(text):
        return "JSON lines"
    if is_json(name, text):
        return "table"
    if _ARTICLE_BEGINS.match(first):
        return "WikiExtractor"
    if what := foreign_text(text):
        raise ValueError(
            f"it is {what}. HINT: extract its text; or, if it is a table, name it .csv or .tsv, with the names of its"
            " columns in the first line, and set data.text_column"
        )
    return LINES


def _beginning(stream: io.BufferedReader) -> str:
    start = stream.peek(START)
    return start.decode(encoding_of(start), "ignore").removeprefix("\ufeff")


def _lines(stream: io.BufferedReader, path: Path) -> Iterator[str]:
    encoding = encoding_of(stream.peek(START))
    if encoding != "utf-8" and path not in _said:
        _said.add(path)
        _log.info("reading %s as %s", path, encoding)
    lines = iter(io.TextIOWrapper(stream, encoding))
    for line in lines:
        if "\0" in line:
            raise ValueError("it contains NUL characters, so it is not text. HINT: export it again")
        if line != END_OF_FILE:
            yield line.removeprefix("\ufeff")  # also within files that were appended to each other


def _as_they_are(lines: Iterator[str], _: str, __: Path) -> Iterator[str]:
    return lines


def _wiki_articles(lines: Iterator[str], _: str, __: Path) -> Iterator[str]:
    """Text between ``<doc ...>`` and ``</doc>``, without the first line, which repeats the title."""
    article: list[str] = []
    for line in lines:
        if _ARTICLE_BEGINS.match(line):
            article = []
        elif line.strip() == _ARTICLE_ENDS:
            yield " ".join(article[1:])
        elif line.strip():
            article.append(line.strip())


def _json_articles(lines: Iterator[str], column: str, path: Path) -> Iterator[str]:
    return _texts(_json_records(lines, path), column, path)


def _json_records(lines: Iterator[str], path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                record = json.loads(sound_json(line))
            except ValueError as error:
                raise TextSourceError(
                    f"{path}: line {number} is not JSON ({error}). HINT: give a JSON object on each line."
                ) from error
            if not isinstance(record, dict):
                raise TextSourceError(f"{path}: line {number} is not an object. HINT: give a JSON object on each line.")
            yield record


def _decoder(path: Path, tokenizer: Path | None) -> Decoder:
    if tokenizer is None:
        raise TextSourceError(
            f"{path} holds token ids and no text, so no tokenizer can be trained on it."
            " HINT: set data.tokenizer to the one with which they were made; bert-base-uncased in many such scripts."
        )
    return Decoder.of(tokenizer)


def _parquet_rows(stream: IO[bytes], column: str, path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(stream if stream.seekable() else io.BytesIO(stream.read()))
    wanted = _column_of(file.schema_arrow.names, column, path)
    for batch in file.iter_batches(columns=[wanted]):
        yield from ({wanted: text} for text in batch.column(0).to_pylist())


def _texts(records: Iterable[Mapping[str, Any]], column: str, path: Path) -> Iterator[str]:
    wanted = None
    for number, record in enumerate(records, start=1):
        wanted = wanted or _column_of(list(record), column, path)
        if wanted not in record or (wanted != column and column in record):
            found = f"no {wanted!r}, but {list_names(record) or 'nothing'}"
            if wanted in record:
                found = f"{column!r}, which the first has not, but only {wanted!r}"
            raise TextSourceError(
                f"{path}: record {number} has {found}."
                " HINT: all records need the column with the article; set data.text_column to it."
            )
        text = record[wanted]
        if isinstance(text, str):
            yield text
        elif text is not None:
            raise TextSourceError(
                f"{path}: {column!r} of record {number} is not text but {type(text).__name__}."
                " HINT: set data.text_column to the column with the article."
            )


def _column_of(columns: list[str], column: str, path: Path) -> str:
    if column in columns:
        return column
    if len(columns) == 1 and len(columns[0].split()) <= _WORDS:
        if path not in _said:
            _said.add(path)
            _log.info("%s: the articles are in its only column, %r", path, columns[0])
        return columns[0]
    raise TextSourceError(
        f"{path} has no column {column!r}. HINT: set data.text_column to one of {list_names(columns)};"
        " the first row of a table must be their names."
    )


_READERS: dict[str, Callable[[Iterator[str], str, Path], Iterator[str]]] = {
    LINES: _as_they_are,
    "WikiExtractor": _wiki_articles,
    "JSON lines": _json_articles,
}
