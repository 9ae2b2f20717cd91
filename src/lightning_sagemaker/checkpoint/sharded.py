# SPDX-License-Identifier: Apache-2.0
"""Sharded checkpoints with checksums, in a folder or in S3."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from lightning_sagemaker.checkpoint.find import fits_before
from lightning_sagemaker.checkpoint.integrity import CHECKSUMS, size_and_checksum, write_checksums
from lightning_sagemaker.checkpoint.s3 import SCHEME, S3CheckpointIO
from lightning_sagemaker.collectives.agreement import from_first, of_all, run_and_sync_errors

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, CheckpointIO, PathLike


class ShardedCheckpointer:
    """Writes and reads sharded checkpoints; its methods are collective.

    Each process reports the size and checksum of the files that it wrote, and the first saves them last. For an
    ``s3://`` URI the shards go through a local folder: each process uploads its own, and loading downloads all once per
    host.

    Args:
        local_rank: Rank of this process on its host.
        plugin: Checkpoint plugin of the Trainer, used if it is one for S3. Default: one for AWS's configured region and
            endpoint.

    """

    def __init__(self, local_rank: int, plugin: CheckpointIO | None = None) -> None:
        self._local_rank, self._plugin = local_rank, plugin

    @cached_property
    def remote(self) -> S3CheckpointIO:
        """The S3 plugin, created on first use."""
        return self._plugin if isinstance(self._plugin, S3CheckpointIO) else S3CheckpointIO()

    def save(self, checkpoint: Checkpoint, place: PathLike, write: Callable[[Checkpoint, Path], None]) -> None:
        """Write a checkpoint.

        Args:
            checkpoint: This process's part of the checkpoint.
            place: Folder, or S3 URI; the first process's is used.
            write: Writes the shard of this process into a folder.

        Raises:
            RuntimeError: On all processes, if one cannot write or upload its shard.

        """
        place = str(from_first(place))
        is_first, is_remote = dist.get_rank() == 0, place.startswith(SCHEME)
        step = int(checkpoint.get("global_step", 0))
        folder = _scratch() if is_remote else Path(place)

        def prepare() -> None:
            if is_first and (folder / CHECKSUMS).is_file():  # of an earlier checkpoint
                (folder / CHECKSUMS).unlink()

        run_and_sync_errors(prepare)
        try:
            write(checkpoint, folder)
            own: dict[str, list[int]] = {}

            def send() -> None:
                for path in _own(folder):
                    own[path.name] = self.remote.put_part(place, path) if is_remote else size_and_checksum(path)

            run_and_sync_errors(send)
            sums = {name: facts for part in of_all(own, dist.get_world_size()) for name, facts in part.items()}

            def finish() -> None:
                if is_first and is_remote:
                    self.remote.finish_parts(place, step, sums, fits_before(checkpoint))
                elif is_first:
                    write_checksums(folder, sums)

            run_and_sync_errors(finish)
        finally:
            if is_remote:
                shutil.rmtree(folder, ignore_errors=True)

    def load(self, place: PathLike, read: Callable[[PathLike], Checkpoint]) -> Checkpoint:
        """Read a checkpoint.

        Args:
            place: Folder, or S3 URI (then the first process's is used).
            read: Reads a checkpoint from a folder.

        """
        address = str(from_first(place))
        if not address.startswith(SCHEME):
            return read(place)
        folder = _scratch()
        try:

            def fetch() -> None:
                if self._local_rank == 0:
                    self.remote.fetch_parts(address, folder)

            run_and_sync_errors(fetch)
            content: Checkpoint = {}
            run_and_sync_errors(lambda: content.update(read(folder)))  # the folder is needed until all have read it
            return content
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _scratch() -> Path:
    """A temporary folder with the same name on all processes; hosts need not share it."""
    return Path(tempfile.gettempdir(), str(from_first(f"lightning-sagemaker-{uuid.uuid4().hex}")))


def _own(folder: Path) -> list[Path]:
    """Files of this process: names of torch's files contain the rank, all others are the first process's."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    own = [path for path in files if path.name.startswith(f"__{dist.get_rank()}_")]
    rest = [path for path in files if not path.name.startswith("__")] if dist.get_rank() == 0 else []
    return [*own, *rest]
