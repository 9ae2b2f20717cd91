# SPDX-License-Identifier: Apache-2.0
"""Tables of records: CSV and its relatives, JSON, JSON lines, Excel, Parquet and Arrow files, and Hugging Face datasets."""

from __future__ import annotations

import difflib
import filecmp
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeVar
from urllib.parse import unquote

from lightning_sagemaker.errors import is_full
from lightning_sagemaker.recipes._common.data.class_names import named_classes
from lightning_sagemaker.recipes._common.data.delimited import check_names
from lightning_sagemaker.recipes._common.data.encodings import UnknownEncodingError
from lightning_sagemaker.recipes._common.data.split_folders import files_of_split, records_of_split
from lightning_sagemaker.recipes._common.data.table import Record, Table, TableWriter
from lightning_sagemaker.recipes._common.data.table_streams import TableForm, buffered, is_large, stream_table
from lightning_sagemaker.recipes._common.data.unpacked import SUFFIXES as PACKED
from lightning_sagemaker.recipes._common.data.unpacked import inner_name, is_hidden, open_unpacked

SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".xlsx")

_NAMED = 30
"""Maximum number of columns in a message."""
_BEGINNING = 4096
"""Bytes by which files are compared first."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""A missing value in the name of a folder."""

_File = TypeVar("_File")


class DataError(ValueError):
    """The data cannot be used."""


class NoRecordsError(DataError):
    """A file has no records, or none of several has."""


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
        DataError: If ``name`` does not exist, has no table, or it is not clear which are meant.

    """
    path = Path(name).expanduser()
    if path.is_dir():
        tables = (file for file in path.rglob("*") if is_table_name(file.name) and file.is_file())
        found = sorted(file for file in tables if not is_hidden(file.relative_to(path)))
        found = choose_files(found, lambda file: file.relative_to(path), name, option)
    else:
        found = [path] if path.is_file() else []
    if not found:
        what = "contains no table" if path.is_dir() else "does not exist"
        raise DataError(
            f"{option}={name!r} was set, but {path.absolute()} {what}. HINT: give a file, or a folder with files, that end"
            f" in {', '.join(SUFFIXES)}, packed ({', '.join(PACKED)}) or not."
        )
    return found


def choose_files(
    files: Sequence[_File], relative: Callable[[_File], PurePath], folder: str, option: str
) -> list[_File]:
    """As :func:`~.split_folders.files_of_split`.

    Raises:
        DataError: If it is not clear which files are meant.

    """
    try:
        return files_of_split(files, relative, folder, option)
    except ValueError as error:
        raise DataError(str(error)) from error


def choose_records(records: Table, source: str, option: str) -> Table:
    """As :func:`~.split_folders.records_of_split`.

    Raises:
        DataError: If there are only records of other splits.

    """
    try:
        return records_of_split(records, source, option)
    except ValueError as error:
        raise DataError(str(error)) from error


def read_files(paths: Sequence[Path], form: TableForm | None = None) -> list[Record]:
    """As :func:`read_tables`, in memory."""
    return list(read_tables(paths, form)[0])


def read_tables(
    paths: Sequence[Path], form: TableForm | None = None, folder: Path | None = None, root: Path | None = None
) -> tuple[Table, list[str]]:
    """All records of some files, in order, and a line on how each file was read.

    Cells of CSV and Excel files are text; others keep their types.

    Args:
        paths: The files.
        form: How text files are written.
        folder: Where the records are kept, in a file without a name. ``None``: in the system's temporary folder.
        root: Folder below which names of folders may hold columns, such as ``label=food``. ``None``: none do.

    Raises:
        DataError: If a file cannot be read, no file has a record, columns are not those of the first file, or two files are
            the same.

    """
    writer = TableWriter(folder)
    read: list[str] = []
    expected: dict[str, None] = {}
    filled: dict[Path, int] = {}
    for path in paths:
        begin = len(writer)
        how, columns = _read_file(path, form, writer, _columns_of_folders(path, root) if root else {})
        count = len(writer) - begin
        read.append(f"{path}: {how}{'' if count else ', no records'}")
        # What writes JSON may leave out keys without a value, as Spark does; then a part may lack a column.
        may_lack = how.startswith("JSON") and (set(columns) <= set(expected) or set(columns) >= set(expected))
        if count and expected and set(columns) != set(expected) and not may_lack:
            raise DataError(
                f"{path} has the columns {', '.join(columns)}, but {next(iter(filled))} has {', '.join(expected)}."
                " HINT: files of one folder need the same columns."
            )
        expected.update(dict.fromkeys(columns))
        filled |= {path: count} if count else {}
    if not filled:
        raise NoRecordsError(f"{paths[0]} has no records. HINT: give a file with a header and at least one row.")
    _check_same([path for path, count in filled.items() if count > 1], root)
    return writer.finish(), read


def _check_same(paths: Sequence[Path], root: Path | None) -> None:
    """Refuse files with the same content, as browsers make them when a file is downloaded twice."""
    alike: dict[tuple[Any, ...], list[Path]] = {}
    for path in paths if len(paths) > 1 else ():
        with path.open("rb") as file:
            key = (
                path.stat().st_size,
                file.read(_BEGINNING),
                *(_columns_of_folders(path, root).items() if root else ()),
            )
        others = alike.setdefault(key, [])
        if same := next((other for other in others if filecmp.cmp(path, other, shallow=False)), None):
            raise DataError(
                f"{same} and {path} have the same content, so each of their records would count twice."
                " HINT: delete one of them."
            )
        others.append(path)


def _columns_of_folders(path: Path, root: Path) -> dict[str, str | None]:
    """Columns in the names of a file's folders, as Hive, Spark and pandas write them."""
    pairs = (part.split("=", 1) for part in path.relative_to(root).parts[:-1] if "=" in part)
    return {name: None if value == _NO_VALUE else unquote(value) for name, value in pairs}


def _read_file(
    path: Path, form: TableForm | None, writer: TableWriter, more: Mapping[str, str | None]
) -> tuple[str, list[str]]:
    """Add the file's records, with more columns; returns how it was read, and its columns."""
    try:
        with open_unpacked(path) as (name, stream):
            how, records = stream_table(name, buffered(stream), is_large(path, name), form)
            columns = writer.extend(({**more, **record} for record in records) if more else records)
        check_names(columns)
    except (UnknownEncodingError, UnicodeDecodeError) as error:
        hint = "HINT: set data.encoding, for example to cp1250, gb18030 or utf-8, or save the file as UTF-8"
        raise DataError(f"{path}: {error}{'' if 'HINT:' in str(error) else f'. {hint}'}.") from error
    except ModuleNotFoundError as error:
        raise DataError(
            f"{path} needs a package that is not installed ({error}). HINT: pip install 'lightning-sagemaker[tables]'."
        ) from error
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_full(error):  # the disk to which the records are copied
            raise
        reason = str(error) if "HINT:" in str(error) else f"{error}. HINT: check the file's contents"
        raise DataError(f"{path} cannot be read: {reason}.") from error
    return how, columns


def read_hub(name: str, config: str | None, splits: Sequence[str], folder: Path | None = None) -> dict[str, Table]:
    """Some splits of a Hugging Face dataset; class labels by their names. Splits that it lacks are left out.

    Raises:
        DataError: If the package `datasets` is missing, or the dataset cannot be loaded.

    """
    try:
        from datasets import load_dataset
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
            found[split] = Table.of(named_classes(dataset[split], dataset[split].features.to_dict()), folder)
    return found


def require_split(found: Mapping[str, Table], split: str, name: str, option: str) -> Table:
    """A split of those that :func:`read_hub` has found.

    Args:
        found: Split -> table.
        split: Name of the split on the hub.
        name: Name of the dataset.
        option: Name of the option, for messages.

    Raises:
        DataError: If the dataset lacks it.

    """
    if split not in found:
        raise DataError(f"the dataset {name!r} has no split {split!r}. HINT: set {option} to another source.")
    return found[split]


def list_names(names: Iterable[str]) -> str:
    """The names, or the first of many, for messages: an object of JSON may have an entry for each record."""
    found = list(map(str, names))
    return f"{', '.join(found[:_NAMED])}{f' and {len(found) - _NAMED} more' if len(found) > _NAMED else ''}"


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
            f"{what} has no column {', '.join(map(repr, missing))}{meant}. HINT: its columns are {list_names(present)};"
            " the first row must be their names."
        )
