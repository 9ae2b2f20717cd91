# SPDX-License-Identifier: Apache-2.0
"""Files of a job in the memory of its hosts: each rank's training state, which outlives the rank but not its launcher."""

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
"""Of a file with the state of one rank."""
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
        rank: The rank.
        world_size: Ranks of the job then.

    """

    step: int
    rank: int
    world_size: int

    @property
    def name(self) -> str:
        """Its file's name."""
        return f"step={self.step}-rank={self.rank}-of={self.world_size}{SUFFIX}"


class HostMemory:
    """The files of one job on this host.

    Args:
        folder: In memory, of this job alone; created with its parents.

    Raises:
        CheckpointError: If it belongs to another user.

    """

    def __init__(self, folder: Path) -> None:
        make_own(folder)
        self.folder = folder
        self.host = f"{socket.gethostname()}:{folder}"
        """Names this host among the job's."""

    def path(self, file: RankFile) -> Path:
        """Where a file is, or would be."""
        return self.folder / file.name

    def files(self) -> set[RankFile]:
        """Those that are complete."""
        found = (_NAME.fullmatch(name) for name in os.listdir(self.folder))
        return {RankFile(*map(int, match.groups())) for match in found if match}

    def write(self, file: RankFile, fill: Callable[[Path], object]) -> Path:
        """Create a file; complete or absent, whenever the process ends.

        Args:
            file: Which.
            fill: Writes a file at a temporary path.

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
        """Remove the files of all other steps; other ranks of this host may be doing the same."""
        for file in self.files():
            if file.step not in steps:
                self.path(file).unlink(missing_ok=True)

    def remove_before(self, step: int) -> None:
        """Remove the files of earlier steps."""
        for file in self.files():
            if file.step < step:
                self.path(file).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Remove what processes that were killed have left."""
        for path in self.folder.glob(f"{_NEW}*"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove everything, the folder too."""
        self.keep(())
        self.remove_unfinished()
        with contextlib.suppress(OSError):  # somebody else has put something there
            self.folder.rmdir()


def make_own(folder: Path) -> None:
    """Create a folder that only this user can read.

    Raises:
        CheckpointError: If it belongs to another user, whose files would be loaded.

    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (owner := folder.stat().st_uid) != os.getuid():
        raise CheckpointError(
            f"{folder} is needed for copies in memory, and belongs to another user ({owner}). HINT:"
            " MemoryCheckpoint(folder=...)."
        )


def newest_complete(found: Sequence[Collection[RankFile]]) -> int | None:
    """The last step of which every rank's state is on some host.

    Args:
        found: Files that each rank sees on its host; there are as many ranks as in the job whose files they are, or
            the files are not used.

    """
    size = len(found)
    everything = {file for files in found for file in files if file.world_size == size}
    ranks: dict[int, set[int]] = {}
    for file in everything:
        ranks.setdefault(file.step, set()).add(file.rank)
    return max((step for step, of in ranks.items() if len(of) == size), default=None)


def launcher_folder(fit: int) -> Path | None:
    """Folder of a fit of the process that has started this one, and would start it again.

    Args:
        fit: Its number in the script, which a restarted script repeats from the first one on.

    Returns:
        None if torch's elastic agent (torchrun) has not started this process: nobody would start it again.

    Raises:
        CheckpointError: If this machine has no folder in memory that all processes share, or another user's is in the
            way.

    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    if not _SHARED.is_dir():
        raise CheckpointError(
            f"MemoryCheckpoint was given, and there is no {_SHARED}. HINT: MemoryCheckpoint(folder=...), on a tmpfs."
        )
    base = _SHARED / f"lightning-sagemaker-{os.getuid()}"
    make_own(base)
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
    """When a process was started; None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[_STARTED]
    except OSError:
        return None
