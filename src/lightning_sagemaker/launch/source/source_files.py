# SPDX-License-Identifier: Apache-2.0
"""The files of a folder that are sent, and why the others are not."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from lightning_sagemaker.launch.source.file_kinds import (
    CREDENTIALS,
    DATA_REASONS,
    HIDDEN,
    RUN,
    why_not_by_content,
    why_not_by_name,
    why_not_data,
    why_not_folder,
)


@dataclass
class Selection:
    """The files of one or more folders that are sent.

    Attributes:
        taken: Name in the archive -> file.
        left_out: Name of a file or folder -> reason why it is not sent.

    """

    taken: dict[str, Path] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, other: Selection, below: str = "") -> None:
        """Add another selection, below a folder of the archive."""
        self.taken |= {below + name: path for name, path in other.taken.items()}
        self.left_out |= {below + name: reason for name, reason in other.left_out.items()}


def select_files(folder: Path, send_anyway: Sequence[str] = (), is_trusted: bool = False) -> Selection:
    """Choose the files of a source folder that are sent.

    Symlinks are judged by their own name and by that of their target. Symlinks out of the folder, and hard links to files
    outside the folder, are not sent.

    Args:
        folder: The source folder, which must exist.
        send_anyway: Names or patterns, relative to ``folder``, of files that are sent nevertheless. Files with
            credentials must be named in full.
        is_trusted: Whether hard links are sent, as for an installed package.

    """
    selection = Selection()
    walk = _Walk(folder, send_anyway, selection.left_out)
    found = list(walk.files(folder, frozenset(), only_named=False))
    names = Counter(_inode(path) for _, path in found if not path.is_symlink())
    for name, path in found:
        if is_trusted or _is_named(name, send_anyway) or path.stat().st_nlink <= names[_inode(path)]:
            selection.taken[name] = path
        else:
            selection.left_out[name] = "hard link to a file outside the folder"
    return selection


def select_data(folder: Path, send_anyway: Sequence[str] = ()) -> Selection:
    """Choose the files of a folder of data that are sent: all but credentials, hidden files, and caches.

    A symlink to a file elsewhere is followed, since folders of data often consist of symlinks (as in Hugging Face's
    cache), if neither its name, nor that of its target or of a folder above the target, indicates credentials or is
    hidden; a folder ``.cache`` is not counted as hidden.

    Args:
        folder: The folder of data, which must exist.
        send_anyway: As in :func:`select_files`.

    """
    selection = Selection()
    selection.taken |= _DataWalk(folder, send_anyway, selection.left_out).files(folder, frozenset(), only_named=False)
    return selection


def why_not(name: str, path: Path, send_anyway: Sequence[str] = ()) -> str | None:
    """Why one file is not sent; None if it is."""
    if name in send_anyway:
        return None
    try:
        reason = why_not_by_name(name) or why_not_by_name(path.resolve().name) or why_not_by_content(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if reason != CREDENTIALS and _is_named(name, send_anyway) else reason


class _Walk:
    """Walks a folder, and records in ``left_out`` what is not sent."""

    def __init__(self, top: Path, send_anyway: Sequence[str], left_out: dict[str, str]) -> None:
        self._top = top
        self._inside = top.resolve()
        self._send_anyway = send_anyway
        self._left_out = left_out

    def files(self, folder: Path, above: frozenset[Path], only_named: bool) -> Iterator[tuple[str, Path]]:
        """Name and path of each file below ``folder`` that is sent; ``above`` are the folder's parents."""
        above |= {folder.resolve()}
        for path in sorted(folder.iterdir()):
            name, target = path.relative_to(self._top).as_posix(), path.resolve()
            reason = self._why_not(name, path, target)
            if reason is None and path.is_dir() and target in above:
                reason = "link to a parent folder"
            if path.is_dir() and (reason is None or (self._leads_to_named(name) and not path.is_symlink())):
                yield from self.files(path, above, only_named or reason is not None)
            elif reason is not None or (only_named and not _is_named(name, self._send_anyway)):
                self._left_out[name] = reason or "in a folder that is not sent"
            else:
                yield name, path

    def _why_not(self, name: str, path: Path, target: Path) -> str | None:
        if path.is_symlink() and not target.is_relative_to(self._inside):
            return "link out of the folder"
        if not path.is_dir() and not path.is_file():
            return "neither a file nor a folder"
        if path.is_dir():
            reason = why_not_folder(name) or (RUN if (path / "algo-1" / "input" / "config").is_dir() else None)
        else:
            reason = why_not(name, path, self._send_anyway)
        if reason is None and path.is_symlink() and not _is_named(name, self._send_anyway):
            return self._why_not_target(target)
        return reason

    def _why_not_target(self, target: Path) -> str | None:
        """Why the target of a symlink is not sent, by any part of its path."""
        name = target.relative_to(self._inside).as_posix()
        folders = [*Path(name).parents][:-1]
        reasons = [why_not_folder(folder.as_posix()) for folder in folders]
        reasons.append(why_not_folder(name) if target.is_dir() else why_not_by_name(name))
        return next((f"{reason} (link to {name})" for reason in reasons if reason is not None), None)

    def _leads_to_named(self, name: str) -> bool:
        return any(pattern.startswith(f"{name}/") for pattern in self._send_anyway)


class _DataWalk(_Walk):
    """As :class:`_Walk`, through a folder of data."""

    def _why_not(self, name: str, path: Path, target: Path) -> str | None:
        if not path.is_dir() and not path.is_file():
            return "neither a file nor a folder"
        if path.is_dir():
            if path.is_symlink() and not target.is_relative_to(self._inside):
                return "link out of the folder"
            reason = why_not_folder(name)
            return reason if reason in DATA_REASONS else None
        return why_not_file_of_data(name, path, self._send_anyway)


def why_not_file_of_data(name: str, path: Path, send_anyway: Sequence[str] = ()) -> str | None:
    """Why one file in a folder of data is not sent; None if it is."""
    if name in send_anyway:
        return None
    try:
        reason = why_not_data(name, path) or (_why_not_linked(path.resolve()) if path.is_symlink() else None)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if reason != CREDENTIALS and _is_named(name, send_anyway) else reason


def _why_not_linked(target: Path) -> str | None:
    """Why the target of a symlink is not sent; None if it is."""
    hidden = [part for part in target.parts[:-1] if part.startswith(".") and part != ".cache"]
    reason = why_not_data(target.name, target)
    return f"{reason or HIDDEN} (link to {target})" if hidden or reason is not None else None


def _inode(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _is_named(name: str, send_anyway: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in send_anyway)
