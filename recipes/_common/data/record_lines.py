# SPDX-License-Identifier: Apache-2.0
"""Records in a file with a JSON object in each line, of which each can be read by itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from lightning_sagemaker.recipes._common.data.table import Record


def records_name(split: str) -> str:
    """Name of the file with the records of a split as they were read, which are written with the predictions."""
    return f"{split}-records.jsonl"


def write_record_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records; what JSON does not know is written as text."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{json.dumps(record, default=str)}\n" for record in records)


class RecordLines(Sequence[Record]):
    """The records of a file from :func:`write_record_lines`; in memory are only the offsets of its lines.

    Args:
        path: The file.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begins = [0]
        with path.open("rb") as file:
            for line in file:
                self._begins.append(self._begins[-1] + len(line))

    def __len__(self) -> int:
        return len(self._begins) - 1

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        with self._path.open("rb") as file:
            file.seek(self._begins[range(len(self))[index]])
            record: Record = json.loads(file.readline())
        return record
