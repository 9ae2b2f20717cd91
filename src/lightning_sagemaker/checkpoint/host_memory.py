# SPDX-License-Identifier: Apache-2.0
"""Files in the memory of a job's hosts: each rank's training state, which survives the rank but not its launcher."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_sagemaker.checkpoint.atomic_write import CheckpointError

SUFFIX = ".rank"
"""Pattern of the name of a file with the state of one rank."""
_NAME = re.compile(rf"step=(\d+)-rank=(\d+)-of=(\d+){re.escape(SUFFIX)}")
_NEW = "new-"
"""Prefix of files that are being written."""
_SHARED = Path("/dev/shm")
_STARTED = 19
"""Index of a process's start time after its name in ``/proc/PID/stat``; see proc(5)."""


@dataclass(frozen=True, order=True)
class RankFile:
    """The state of one rank after a step.

    Attributes:
        step: Optimizer steps.
        rank: Global rank.
        world_size: Number of ranks of the job at that time.

    """

    step: int
    rank: int
    world_size: int

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"step={self.step}-rank={self.rank}-of={self.world_size}{SUFFIX}"


class HostMemory:
    """The files of one job on this host.

    Args:
        folder: Folder in memory, for this job alone; created with its parents.

    Raises:
        CheckpointError: If the folder belongs to another user.

    """

    def __init__(self, folder: Path) -> None:
        _make_own(folder)
        self.folder = folder
        self.host = f"{socket.gethostname()}:{folder}"
        """Identifies this host in the job."""

    def path(self, file: RankFile) -> Path:
        """Path of a file, which may not exist."""
        return self.folder / file.name

    def files(self) -> set[RankFile]:
        """The complete files."""
        found = (_NAME.fullmatch(name) for name in os.listdir(self.folder))
        return {RankFile(*map(int, match.groups())) for match in found if match}

    def write(self, file: RankFile, fill: Callable[[Path], object]) -> Path:
        """Create a file atomically: it is complete or absent, whenever the process ends.

        Args:
            file: Identifies the file.
            fill: Writes the file at a temporary path.

        Raises:
            OSError: If memory is full.

        """
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix=_NEW, delete=False) as temporary:
            new = Path(temporary.name)
        try:
            fill(new)
            return new.replace(self.path(file))
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    def keep(self, steps: Collection[int]) -> None:
        """Remove the files of all other steps, possibly concurrently with other ranks of this host."""
        for file in self.files():
            if file.step not in steps:
                self.path(file).unlink(missing_ok=True)

    def remove_before(self, step: int) -> None:
        """Remove the files of earlier steps."""
        for file in self.files():
            if file.step < step:
                self.path(file).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Remove incomplete files of killed processes."""
        for path in self.folder.glob(f"{_NEW}*"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all files and the folder."""
        self.keep(())
        self.remove_unfinished()
        with contextlib.suppress(OSError):  # it contains other files
            self.folder.rmdir()


def _make_own(folder: Path) -> None:
    """Create a folder that only this user can access; raise if it is another user's, whose files would be loaded."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (owner := folder.stat().st_uid) != os.getuid():
        raise CheckpointError(
            f"{folder} is needed for copies in memory, and belongs to another user ({owner}). HINT:"
            " MemoryCheckpoint(folder=...)."
        )


def newest_complete(found: Sequence[Collection[RankFile]]) -> int | None:
    """The last step for which every rank's state is on some host; None if there is none.

    Args:
        found: Files that each rank finds on its host. Files of a job with another number of ranks are
            ignored.

    """
    size = len(found)
    everything = {file for files in found for file in files if file.world_size == size}
    ranks: dict[int, set[int]] = {}
    for file in everything:
        ranks.setdefault(file.step, set()).add(file.rank)
    return max((step for step, of in ranks.items() if len(of) == size), default=None)


def launcher_folder(fit: int) -> Path | None:
    """Folder for a fit, which belongs to the launcher that has started this process, and would restart it.

    Args:
        fit: Number of the fit in the script; a restarted script counts from the first one again.

    Returns:
        The folder; None if torch's elastic agent (torchrun) has not started this process, so that nothing would restart it.

    Raises:
        CheckpointError: If this machine has no folder in memory that all processes share, or the folder belongs to another
            user.

    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    if not _SHARED.is_dir():
        raise CheckpointError(
            f"MemoryCheckpoint was given, and there is no {_SHARED}. HINT: MemoryCheckpoint(folder=...), on a tmpfs."
        )
    base = _SHARED / f"lightning-sagemaker-{os.getuid()}"
    _make_own(base)
    _remove_orphans(base)
    return base / f"{os.getppid()}-{_started(os.getppid())}.{fit}"


def _remove_orphans(base: Path) -> None:
    """Remove the files of launchers that have ended without removing them."""
    with contextlib.suppress(OSError):
        for folder in base.iterdir():
            pid, _, started = folder.name.partition("-")
            if pid.isdigit() and _started(int(pid)) != started.partition(".")[0]:
                shutil.rmtree(folder, ignore_errors=True)


def _started(pid: int) -> str | None:
    """Start time of a process; None if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[_STARTED]
    except OSError:
        return None
