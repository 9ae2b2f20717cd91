# SPDX-License-Identifier: Apache-2.0
"""The rows that an earlier start has left in the file of Lightning's CSV logger, whose version the script has fixed.

Lightning warns that they "will be deleted when the new ones are saved", but deletes them as the logger is created: before
it is known whether a run is resumed. Here they are deleted when the warning says so, and not at all in a resumed run.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from lightning_sagemaker._lightning import CSVWriter

if TYPE_CHECKING:
    from lightning_sagemaker._types import CSVLogger, Logger

_HELD = "_lightning_sagemaker_held"
"""Attribute of a writer whose file has rows of an earlier start."""
_SAVED = "_lightning_sagemaker_saved"
"""Attribute of a writer: number of rows in its file."""


class Writer(Protocol):
    """Writes the rows of a CSV logger."""

    metrics: list[dict[str, float]]
    metrics_keys: list[str]
    metrics_file_path: str


def hold_rows(kind: type) -> None:
    """Have a class of writers keep a file that it finds until it saves rows of its own, and count the rows.

    It also rewrites a file for a new column atomically: otherwise a kill leaves it empty.
    """
    check: Callable[[Writer], None] = vars(kind)["_check_log_dir_exists"]
    rewrite: Callable[[Writer, list[str]], None] = vars(kind)["_rewrite_with_new_header"]
    save: Callable[[Writer], None] = vars(kind)["save"]

    @functools.wraps(check)
    def checked(self: Writer) -> None:
        path = self.metrics_file_path
        if "://" in path or not os.path.isfile(path):
            return check(self)
        self.metrics_file_path = f"{path}.new"  # there is none, so nothing is deleted
        try:
            check(self)
        finally:
            self.metrics_file_path = path
        vars(self)[_HELD] = True

    @functools.wraps(rewrite)
    def rewritten(self: Writer, fieldnames: list[str]) -> None:
        path = Path(self.metrics_file_path)
        if not path.is_file():  # it is elsewhere, such as in S3
            return rewrite(self, fieldnames)
        with path.open(newline="") as old, _replacing(path) as file:
            writer = csv.DictWriter(file, fieldnames=fieldnames)
            writer.writeheader()
            writer.writerows(csv.DictReader(old))

    @functools.wraps(save)
    def saved(self: Writer) -> None:
        if self.metrics and vars(self).pop(_HELD, False):
            os.remove(self.metrics_file_path)
        new = len(self.metrics)
        save(self)
        vars(self)[_SAVED] = vars(self).get(_SAVED, 0) + new

    type.__setattr__(kind, "_check_log_dir_exists", checked)
    type.__setattr__(kind, "_rewrite_with_new_header", rewritten)
    type.__setattr__(kind, "save", saved)


hold_rows(CSVWriter)  # before a script creates its loggers


def writer_of(logger: Logger, creates: bool = False) -> Writer | None:
    """The writer of a CSV logger that writes to a file here; None for any other logger.

    Args:
        logger: The logger.
        creates: Whether to create the writer, if the logger's folder is there.

    """
    if not any(kind.__name__ == "CSVLogger" for kind in type(logger).__mro__):
        return None
    if not is_created(logger) and not (creates and Path(str(logger.log_dir)).is_dir()):  # not a URL such as s3://
        return None
    writer: object = cast("CSVLogger", logger).experiment  # a dummy, except on rank zero
    if not isinstance(writer, CSVWriter) or "://" in writer.metrics_file_path:
        return None
    return cast(Writer, writer)


def is_created(logger: Logger) -> bool:
    """Whether a CSV logger has a writer."""
    return vars(logger).get("_experiment") is not None


def is_held(writer: Writer) -> bool:
    """Whether the file has rows of an earlier start, which are to be deleted."""
    return _HELD in vars(writer)


def count_rows(writer: Writer) -> int:
    """Number of rows that have been logged."""
    return int(vars(writer).get(_SAVED, 0)) + len(writer.metrics)


def continue_rows(writer: Writer, count: int | None = None) -> None:
    """Continue the file of an earlier start, if there is one.

    Args:
        writer: The writer.
        count: Number of its rows to keep, as later ones are logged again; None for all.

    """
    path = Path(writer.metrics_file_path)
    if vars(writer).pop(_HELD, False):
        columns, rows = _read(path)
        with _replacing(path) as file:
            csv.writer(file).writerows([columns, *rows[:count]])
    if path.is_file():
        writer.metrics_keys, rows = _read(path)
        vars(writer)[_SAVED] = len(rows)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """A file that replaces another at the end."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", newline="") as file:
        yield file
    os.replace(new, path)


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a file; without the last line, if a kill has left it incomplete."""
    text = path.read_bytes().decode(errors="replace")
    lines, found = text[: text.rfind("\n") + 1].splitlines(keepends=True), list[list[str]]()
    with contextlib.suppress(csv.Error):
        found.extend(csv.reader(lines))
    columns: Sequence[str] = found[0] if found else []
    whole = itertools.takewhile(lambda row: len(row) == len(columns), found[1:])
    return list(columns), list(whole)
