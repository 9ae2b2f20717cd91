# SPDX-License-Identifier: Apache-2.0
"""Tables of records: CSV, TSV, JSON, JSON lines and Parquet files, and Hugging Face datasets."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common.fingerprints import file_fingerprint

SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")

Records = list[dict[str, Any]]


class DataError(ValueError):
    """The data cannot be used."""


def is_file_name(name: str) -> bool:
    """Whether ``name`` means a file or folder rather than a dataset on the Hugging Face hub."""
    looks = name.startswith((".", "/", "~")) or name.endswith(SUFFIXES) or name.count("/") > 1
    return looks or Path(name).exists()


def find_files(name: str, option: str) -> list[Path]:
    """The table files that ``name``, a file or a folder, stands for.

    Raises:
        DataError: If there is none.

    """
    path = Path(name).expanduser()
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    else:
        found = [path] if path.is_file() else []
    if not found:
        what = "holds no table" if path.is_dir() else "does not exist"
        raise DataError(
            f"{option}={name!r} was set, but {path.absolute()} {what}."
            f" HINT: give a file, or a folder with files, that end in {', '.join(SUFFIXES)}."
        )
    return found


def fingerprint(name: str, option: str) -> Any:
    """Changes whenever the table may have changed."""
    return [file_fingerprint(path) for path in find_files(name, option)] if is_file_name(name) else name


def read_files(paths: Iterable[Path]) -> Records:
    """All records of some files, in order.

    Raises:
        DataError: If a file cannot be read as what its name says, or has no record.

    """
    return [record for path in paths for record in _read_file(path)]


def _read_file(path: Path) -> Records:
    readers = {".parquet": _read_parquet, ".json": _read_json, ".jsonl": _read_json}
    try:
        records = readers.get(path.suffix, _read_csv)(path)
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, DataError):
            raise
        kind = path.suffix.lstrip(".").upper()
        raise DataError(f"{path} cannot be read as {kind} ({error}). HINT: it must be UTF-8 {kind}.") from error
    if not records:
        raise DataError(f"{path} has no record. HINT: give a file with a header and at least one row.")
    return records


def _read_csv(path: Path) -> Records:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True))
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise DataError(
                f"{path}: record {number} has not as many fields as the header. HINT: quote fields with commas."
            )
    return rows


def _read_json(path: Path) -> Records:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        content = json.loads(text) if text.strip() else []
        rows = content.get("data", []) if isinstance(content, dict) else content
    else:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f'{path} is no list of records. HINT: give [{{...}}, ...], {{"data": [...]}}, or JSON lines.')
    return rows


def _read_parquet(path: Path) -> Records:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path} needs the package pyarrow. HINT: pip install pyarrow.") from error
    rows: Records = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def read_hub(name: str, config: str | None, splits: Sequence[str]) -> dict[str, Records]:
    """Some splits of a Hugging Face dataset; class labels by their names. Splits that it has not are left out.

    Raises:
        DataError: If the package `datasets` is missing, or the dataset cannot be loaded.

    """
    try:
        from datasets import ClassLabel, load_dataset
    except ImportError as error:
        raise DataError(
            f"{name!r} is no file here, so it names a Hugging Face dataset, but the package `datasets` is not"
            " installed. HINT: pip install datasets, or give the path of a file."
        ) from error
    try:
        dataset = load_dataset(name, config)
    except Exception as error:  # whatever the hub's client raises
        raise DataError(
            f"{name!r} is no file here, and no Hugging Face dataset could be loaded"
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
    """Check that the table has some columns.

    Raises:
        DataError: If not; says which it has.

    """
    present = list(records[0])
    missing = [column for column in columns if column not in present]
    if missing:
        raise DataError(
            f"{what} has no column {', '.join(map(repr, missing))}. HINT: its columns are {', '.join(present)}."
        )
