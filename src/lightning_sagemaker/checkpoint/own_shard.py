# SPDX-License-Identifier: Apache-2.0
"""The shard of a checkpoint that one process writes, on disk or to S3."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.distributed.checkpoint import FileSystemWriter, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from lightning_sagemaker.checkpoint.integrity import size_and_checksum
from lightning_sagemaker.checkpoint.s3 import SCHEME, S3CheckpointIO

Written = tuple[list[WriteResult], dict[str, list[int]]]
"""torch's write results of a process, and the sizes and checksums of its files by name."""
UNFINISHED = ".part"
"""Suffix of a folder that is being written."""


class OwnShard:
    """Writes the shard of this process, to a local folder or to S3.

    Args:
        place: Path of the checkpoint.
        rank: Rank of this process.
        remote: Creates the S3 writer.

    """

    def __init__(self, place: str, rank: int, remote: Callable[[], S3CheckpointIO]) -> None:
        self.place, self.is_remote = place, place.startswith(SCHEME)
        self._rank, self._remote = rank, remote
        name = Path(place)
        self.folder = Path(tempfile.mkdtemp()) if self.is_remote else name.with_name(f".{name.name}{UNFINISHED}")
        self.writer = FileSystemWriter(self.folder)
        self.writer.set_up_storage_writer(rank == 0)

    def write(self, plan: SavePlan, planner: SavePlanner) -> Written:
        """Write the shard; returns torch's write results, and sizes and checksums by file name."""
        writes = self.writer.write_data(plan, planner)
        writes.wait()
        own = sorted(self.folder.glob(f"__{self._rank}_*"))
        return writes.value(), {path.name: self.put(path) for path in own}

    def put(self, path: Path) -> list[int]:
        """Move a complete file to its destination; returns its size and checksum."""
        return self._remote().put_part(self.place, path) if self.is_remote else size_and_checksum(path)

    def remove(self) -> None:
        """Remove the local files, unless they have been renamed into place."""
        if self._rank == 0 or self.is_remote:
            shutil.rmtree(self.folder, ignore_errors=True)
