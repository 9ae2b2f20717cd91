# SPDX-License-Identifier: Apache-2.0
"""Which files of a folder a split reads: those that are named for it, if others are named for another split.

The names are those by which the package `datasets` finds splits: a folder ``train``, a file ``data/test-00000.parquet``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TypeVar

import numpy as np

from lightning_sagemaker.rank import is_rank_zero
from lightning_sagemaker.recipes._common.data.table import Table
from lightning_sagemaker.recipes._common.data.unpacked import inner_name

_SPLITS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev"},
    "test": {"test", "testing", "eval", "evaluation"},
}
"""Split -> words in the names of its files or folders."""
_SPLIT_OF = {"text": "train", "predict": "test"}
"""Option without `data.` -> split whose files it reads, where that has another name."""
_SPLIT_COLUMNS = ("split", "fold", "subset", "set", "partition")
"""Columns by which Hive, Spark and pandas divide a table into folders, such as ``split=train``."""
_BETWEEN_WORDS = re.compile(r"[-._ 0-9]+|(?<=[a-z])(?=[A-Z])|(?<=[a-z])(?:set|data)(?![a-z])")
_KIND = re.compile(r"\.(csv|tsv|json|jsonl|ndjson|parquet|arrow|feather|xlsx|txt)$")
_WITH_NOTES = (".arrow", ".parquet")
_NOTES = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
"""Files that the package `datasets` writes beside tables of these kinds."""
_CACHED = re.compile(r"cache-.*\.arrow")
"""Files that it writes there, too, when the table is mapped, filtered or shuffled: the same records, or their numbers."""
_LOG_OF_DELTA = "_delta_log"
_NAMED = 3
"""Maximum number of files in a message."""

_File = TypeVar("_File")

_log = logging.getLogger(__name__)
_said: set[tuple[str, str]] = set()


def split_named(path: PurePath) -> str | None:
    """The split that a path names by its outermost part that names one; ``None`` if it names none, or several at once."""
    for part in path.parts:
        name, equals, value = part.partition("=")
        if equals and name.lower() not in _SPLIT_COLUMNS:
            continue  # another column's value
        words = set(map(str.lower, _BETWEEN_WORDS.split(value if equals else part)))
        if found := [split for split, names in _SPLITS.items() if words & names]:
            return found[0] if len(found) == 1 else None
    return None


def files_of_split(
    files: Sequence[_File], relative: Callable[[_File], PurePath], folder: str, option: str
) -> list[_File]:
    """The files that an option reads from a folder.

    Args:
        files: All files of the folder.
        relative: Function of a file: its path in the folder.
        folder: Name of the folder, for messages.
        option: Name of the option, such as ``data.train``, which tells the split.

    Raises:
        ValueError: If files are named for splits, but none for this one, a file is there in two formats, or a log tells
            which files count.

    """
    files = _of_table(files, relative, folder, option)
    option_name = option.removeprefix("data.")
    wanted = _SPLIT_OF.get(option_name, option_name)
    named = [split_named(relative(file)) for file in files]
    own = [file for file, split in zip(files, named, strict=True) if split == wanted]
    others = [file for file, split in zip(files, named, strict=True) if split not in (wanted, None)]
    chosen = list(files)
    if named.count(None) > len(files) / 2:  # names by chance, such as an article about trains among a thousand
        if others:
            _say(folder, f"all files, also {_list(others, relative)}")
    elif own:
        chosen = own
        if rest := [file for file, split in zip(files, named, strict=True) if split != wanted]:
            hint = " HINT: data.validation and data.test take the same folder." if others and wanted == "train" else ""
            _say(folder, f"only the files named for {wanted}, not {_list(rest, relative)}.{hint}")
    elif others and len(set(named)) > 1:  # a folder that is wholly of one other split is what was asked for
        raise ValueError(
            f"{option}={folder!r} was set, whose files are named for other splits: {_list(others, relative)}."
            f" HINT: give the file for {option}, or name it for the split, such as {wanted}.csv."
        )
    _check_copies(chosen, relative, folder, option)
    return chosen


def records_of_split(records: Table, source: str, option: str) -> Table:
    """The records that an option reads from a table: those of its split, if a column has names of splits only.

    Args:
        records: All records.
        source: Name of the table, for messages.
        option: As for :func:`files_of_split`.

    Raises:
        ValueError: If none are of its split, but of several others.

    """
    column = next((name for name in records.columns if name.lower() in _SPLIT_COLUMNS), None)
    if column is None:
        return records
    of_word = {word: split for split, words in _SPLITS.items() for word in words}
    named = [of_word.get(str(record[column]).strip().lower()) for record in records]
    if None in named or len(set(named)) < 2:
        return records
    wanted = _SPLIT_OF.get(option.removeprefix("data."), option.removeprefix("data."))
    own = [number for number, split in enumerate(named) if split == wanted]
    if not own:
        raise ValueError(
            f"{option}={source!r} was set, whose column {column!r} has records of other splits only:"
            f" {', '.join(sorted(set(filter(None, named))))}. HINT: give the records for {option} in a file of their own."
        )
    _say(source, f"only the {len(own)} records of {wanted} in the column {column!r}, of {len(named)}")
    return records.take(np.array(own))


def _of_table(
    files: Sequence[_File], relative: Callable[[_File], PurePath], folder: str, option: str
) -> Sequence[_File]:
    """Without files that programs wrote for themselves: notes, caches, and what is in folders such as ``_temporary``."""
    if any(_LOG_OF_DELTA in relative(file).parts for file in files):
        raise ValueError(
            f"{option}={folder!r} was set, which is a Delta table: its log tells which files count; the others hold"
            " records that were deleted or changed. HINT: export it, for example with Spark's df.write.parquet(FOLDER)."
        )
    if any(relative(file).suffix in _WITH_NOTES for file in files):
        noted = {relative(file).parent for file in files if relative(file).name in _NOTES}
        files = [
            file
            for file in files
            if relative(file).name not in _NOTES
            and not (relative(file).parent in noted and _CACHED.fullmatch(relative(file).name))
        ]
    # As Hadoop's readers and pyarrow: what a job that was killed has left in _temporary are copies.
    kept = [file for file in files if not any(part.startswith("_") for part in relative(file).parts[:-1])]
    if not kept or len(kept) == len(files):
        return files
    left = set(kept)
    _say(
        folder, f"no files of folders whose names begin with _: {_list([f for f in files if f not in left], relative)}"
    )
    return kept


def _check_copies(files: Sequence[_File], relative: Callable[[_File], PurePath], folder: str, option: str) -> None:
    seen: dict[PurePath, PurePath] = {}
    for path in map(relative, files):
        other = seen.setdefault(path.with_name(_KIND.sub("", inner_name(path.name.lower()))), path)
        if other is not path:
            raise ValueError(
                f"{option}={folder!r} was set, which holds {other} and {path}, the same by name in two formats."
                " HINT: delete one, or give the other file."
            )


def _say(folder: str, what: str) -> None:
    if is_rank_zero() and (folder, what) not in _said:
        _said.add((folder, what))
        _log.warning("%s: reading %s", folder, what)


def _list(files: Sequence[_File], relative: Callable[[_File], PurePath]) -> str:
    named = ", ".join(str(relative(file)) for file in files[:_NAMED])
    return f"{named}{', ...' if len(files) > _NAMED else ''}"
