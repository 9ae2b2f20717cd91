# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: a file is complete or unchanged, whatever happens while it is written."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lightning_sagemaker.errors import FULL
from lightning_sagemaker.job import SageMakerJobError

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class CheckpointError(SageMakerJobError):
    """A checkpoint cannot be written or read; the message has the state found and the fix."""


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Context with a file to write to, which is flushed and replaces ``path`` if the block ends without an error.

    Raises:
        CheckpointError: If there is no space or no permission; an existing file at ``path`` is unchanged.

    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    written = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{path.name}.*.part"):  # left by a killed process
            left.unlink(missing_ok=True)
        with temporary.open("wb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            finally:
                written = temporary.stat().st_size
        temporary.replace(path)
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError for a full disk
        raise CheckpointError(_explain(path, error, written)) from error
    finally:
        with contextlib.suppress(OSError):  # the folder may not exist
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Flush a folder so that new names in it survive a power loss; not possible on Windows."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _explain(path: Path, error: Exception, written: int) -> str:
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    codes = {cause.errno for cause in causes if isinstance(cause, OSError)}
    place = next((folder for folder in path.parents if folder.exists()), path.parent)
    free = shutil.disk_usage(place).free
    if codes & {*FULL} or (free < 2**20 and not codes & {errno.ENOENT, *_DENIED}):
        others = [other.stat().st_size for other in path.parent.glob(f"*{path.suffix}") if other.is_file()]
        size = max(written, *others, 0)
        return (
            f"{path} was not written: no space left ({error}). At least {_mebi(size)} more are needed, and {_mebi(free)} are"
            f" free on {place}. HINT: free disk space, or set a larger volume_size."
        )
    if codes & {errno.ENOENT, *_DENIED}:
        return f"{path} was not written: {error}. HINT: use a folder that this process may write to."
    return f"{path} was not written: {type(error).__name__}: {error}. HINT: the file's previous version is unchanged."


def _mebi(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
