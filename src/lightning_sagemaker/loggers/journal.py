# SPDX-License-Identifier: Apache-2.0
"""A run's log rows, on disk first: a file of JSON lines, and the progress of sending it. No torch, no client."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
"""Statuses of a run, as in MLflow; KILLED means interrupted, so it may be resumed."""


@dataclass
class Progress:
    """Progress of sending.

    Attributes:
        run_id: The server's id of the run; None until the server has responded.
        sent: Bytes of the journal that have been sent.
        error: Why sending failed last; None without an error.

    """

    run_id: str | None = None
    sent: int = 0
    error: str | None = None


class Journal:
    """One run's rows, in the order in which they were logged.

    Rows are mappings: first ``{"about": ...}`` with the destination and the run's name; ``{"start": ...}`` with an id
    when a process starts training; ``{"params": {...}}``; ``{"t": milliseconds, "step": n, "metrics": {...}}``;
    ``{"status": ...}``.

    A row is written atomically, so a process may be killed at any time; a machine crash may lose rows.

    Args:
        folder: Folder of the journals.
        key: The run's name in this package, which stays the same across restarts.

    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key
        self.path = folder / f"{key}.jsonl"
        self._progress = folder / f"{key}.progress.json"
        self._file: int | None = None

    def append(self, *rows: dict[str, object]) -> None:
        """Add rows."""
        self.append_lines([json.dumps(row, separators=(",", ":")) for row in rows])

    def append_lines(self, lines: list[str]) -> None:
        """Add rows that are already serialized."""
        if self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._end_line()
        data = "".join(f"{line}\n" for line in lines).encode()
        size = os.lseek(self._file, 0, os.SEEK_END)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _end_line(self) -> None:
        """End a truncated row, as after a full disk, so that it is a separate line, which is skipped."""
        assert self._file is not None
        size = os.lseek(self._file, 0, os.SEEK_END)
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def lines(self, offset: int = 0) -> Iterator[tuple[str, int]]:
        """Complete lines from an offset on, each with its end offset."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                yield line[:-1].decode(errors="replace"), offset

    def rows(self, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
        """As :meth:`lines`, parsed; a damaged line is an empty row."""
        for line, end in self.lines(offset):
            row = None
            with contextlib.suppress(ValueError):
                row = json.loads(line)
            yield row if isinstance(row, dict) else {}, end

    @property
    def about(self) -> dict[str, Any] | None:
        """The destination of the rows; None for a journal that does not exist."""
        return next((row["about"] for row, _ in self.rows() if "about" in row), None)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def unsent(self) -> list[str]:
        """Lines whose delivery is not confirmed."""
        return [line for line, _ in self.lines(self.progress().sent)]

    def progress(self) -> Progress:
        """Progress of sending."""
        try:
            return Progress(**json.loads(self._progress.read_text()))
        except (OSError, ValueError, TypeError):
            return Progress()

    def note(self, progress: Progress) -> None:
        """Record the progress of sending, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self._progress.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(asdict(progress)))
        part.replace(self._progress)

    @contextlib.contextmanager
    def alone(self, seconds: float = float("inf")) -> Iterator[bool]:
        """Context; yields whether this process is the only sender. Waits at most ``seconds`` for another one to exit."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{self.key}.lock").open("a") as file:
            until = time.monotonic() + seconds
            while not (mine := _lock(file.fileno())) and time.monotonic() < until:
                time.sleep(0.05)
            yield mine


def _lock(file: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: there is no other container's process to wait for
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def journals(folder: Path) -> list[Journal]:
    """All journals in a folder, the oldest first."""
    found = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    return [Journal(folder, path.stem) for path in found]
