# SPDX-License-Identifier: Apache-2.0
"""Tables of records: CSV and its relatives, JSON, JSON lines, Excel and Parquet files, and Hugging Face datasets."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common.data.delimited import check_names, read_rows
from lightning_sagemaker.recipes._common.data.encodings import UnknownEncodingError, decode
from lightning_sagemaker.recipes._common.data.fingerprints import file_fingerprint
from lightning_sagemaker.recipes._common.data.unpacked import SUFFIXES as PACKED
from lightning_sagemaker.recipes._common.data.unpacked import inner_name, is_hidden, open_unpacked
from lightning_sagemaker.recipes._common.data.workbooks import Records, parse_json, read_excel

SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".xlsx")

_OTHERS = {
    b"PK\x03\x04": "an office document",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"\xd0\xcf\x11\xe0": "an Excel 97 document",
    b"%PDF": "a PDF document",
    b"SQLite format": "an SQLite database",
}
"""First bytes of a file -> kind of a file that cannot be read."""


@dataclass(frozen=True)
class TableForm:
    """How a text file with a table is written.

    Args:
        delimiter: Delimiter of columns. ``None``: detected.
        encoding: Python's name. ``None``: detected.

    """

    delimiter: str | None = None
    encoding: str | None = None


class DataError(ValueError):
    """The data cannot be used."""


def is_file_name(name: str) -> bool:
    """Whether ``name`` means a file or folder rather than a dataset on the Hugging Face hub."""
    looks = name.startswith((".", "/", "~")) or is_table_name(name) or name.count("/") > 1
    return looks or Path(name).exists()


def is_table_name(name: str) -> bool:
    """Whether a file's name is that of a table, compressed or not."""
    return inner_name(name.lower()).endswith(SUFFIXES)


def find_files(name: str, option: str) -> list[Path]:
    """The table files that ``name``, a file or a folder, stands for.

    Raises:
        DataError: If ``name`` does not exist or has no table.

    """
    path = Path(name).expanduser()
    if path.is_dir():
        tables = (file for file in path.rglob("*") if is_table_name(file.name) and file.is_file())
        found = sorted(file for file in tables if not is_hidden(file.relative_to(path)))
    else:
        found = [path] if path.is_file() else []
    if not found:
        what = "contains no table" if path.is_dir() else "does not exist"
        raise DataError(
            f"{option}={name!r} was set, but {path.absolute()} {what}."
            f" HINT: give a file, or a folder with files, that end in {', '.join(SUFFIXES)},"
            f" packed ({', '.join(PACKED)}) or not."
        )
    return found


def fingerprint(name: str, option: str) -> Any:
    """Changes whenever the table's files may have changed; of a Hugging Face dataset, its name."""
    return [file_fingerprint(path) for path in find_files(name, option)] if is_file_name(name) else name


def read_files(paths: Sequence[Path], form: TableForm | None = None) -> Records:
    """All records of some files, in order. Cells of CSV and Excel files are text; others keep their types.

    Raises:
        DataError: If a file cannot be read, has no record, or its columns are not those of the first.

    """
    return [record for _, records in read_tables(paths, form) for record in records]


def read_tables(paths: Sequence[Path], form: TableForm | None = None) -> list[tuple[str, Records]]:
    """As :func:`read_files`, but separately for each file: a line on how it was read, and its records."""
    tables = [(path, *_read_file(path, form or TableForm())) for path in paths]
    first, _, expected = tables[0]
    for path, _, records in tables:
        if set(records[0]) != set(expected[0]):
            raise DataError(
                f"{path} has the columns {', '.join(records[0])}, but {first} has {', '.join(expected[0])}."
                " HINT: files of one folder need the same columns."
            )
    return [(f"{path}: {how}", records) for path, how, records in tables]


def _read_file(path: Path, form: TableForm) -> tuple[str, Records]:
    try:
        with open_unpacked(path) as (name, file):
            data = file.read()
        kind = _kind(name, data)
        if kind == "parquet":
            how, records = "Parquet", _read_parquet(data)
        elif kind == "excel":
            how, records = "Excel", read_excel(data)
        else:
            text, encoding = decode(data, form.encoding)
            if kind == "json":
                how, records = f"JSON, {encoding}", parse_json(text)
            else:
                header, rows, delimiter = read_rows(text, form.delimiter)
                how = f"delimiter {delimiter!r}, {encoding}"
                records = [dict(zip(header, row, strict=True)) for row in rows]
    except UnknownEncodingError as error:
        raise DataError(
            f"{path}: {error}. HINT: set data.encoding, for example to cp1250, gb18030 or utf-8, or save the file as UTF-8."
        ) from error
    except ModuleNotFoundError as error:
        raise DataError(
            f"{path} needs a package that is not installed ({error}). HINT: pip install 'lightning-sagemaker[tables]'."
        ) from error
    except (OSError, ValueError) as error:
        reason = str(error) if "HINT:" in str(error) else f"{error}. HINT: check the file's contents"
        raise DataError(f"{path} cannot be read: {reason}.") from error
    if not records:
        raise DataError(f"{path} has no records. HINT: give a file with a header and at least one row.")
    return how, records


def _kind(name: str, data: bytes) -> str:
    """``parquet``, ``excel``, ``json`` or ``text``: by the first bytes if possible, else by the name."""
    if data.startswith(b"PAR1"):
        return "parquet"
    if data.startswith(b"PK\x03\x04") and b"xl/workbook" in data:
        return "excel"
    for mark, what in _OTHERS.items():
        if data.startswith(mark):
            raise ValueError(f"it is {what}. HINT: unpack it, or export it as CSV")
    return "json" if name.lower().endswith((".json", ".jsonl", ".ndjson")) else "text"


def _read_parquet(data: bytes) -> Records:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(data))
    check_names(table.column_names)
    rows: Records = table.to_pylist()
    return rows


def read_hub(name: str, config: str | None, splits: Sequence[str]) -> dict[str, Records]:
    """Some splits of a Hugging Face dataset; class labels by their names. Splits that it lacks are left out.

    Raises:
        DataError: If the package `datasets` is missing, or the dataset cannot be loaded.

    """
    try:
        from datasets import ClassLabel, load_dataset
    except ImportError as error:
        raise DataError(
            f"{name!r} is not a local file, so it names a Hugging Face dataset, but the package `datasets` is not"
            " installed. HINT: pip install datasets, or give the path of a file."
        ) from error
    try:
        dataset = load_dataset(name, config)
    except Exception as error:  # whatever the hub's client raises
        raise DataError(
            f"{name!r} is not a local file, and no Hugging Face dataset could be loaded"
            f" ({str(error).strip().splitlines()[0]}). HINT: check the name, the configuration and the network."
        ) from error
    found = {}
    for split in splits:
        if split in dataset:
            classes = {k: v for k, v in dataset[split].features.items() if isinstance(v, ClassLabel)}
            found[split] = [
                {k: classes[k].int2str(v) if k in classes and v is not None and v >= 0 else v for k, v in row.items()}
                for row in dataset[split]
            ]
    return found


def require_columns(records: Sequence[Mapping[str, Any]], columns: Iterable[str], what: str) -> None:
    """Check that a table has all of ``columns``.

    Raises:
        DataError: If one is missing; the message lists the table's columns.

    """
    present = list(records[0])
    missing = [column for column in columns if column not in present]
    if missing:
        near = difflib.get_close_matches(missing[0], present, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise DataError(
            f"{what} has no column {', '.join(map(repr, missing))}{meant}. HINT: its columns are {', '.join(present)};"
            " the first row must be their names."
        )
