# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of which each process writes its part: with check sums, in a folder or at an address in S3."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import torch.distributed as dist

from lightning_sagemaker.checkpoint.resume import SUMS, file_sum, write_sums
from lightning_sagemaker.checkpoint.s3 import SCHEME, S3CheckpointIO
from lightning_sagemaker.collectives.agreement import together


class CheckedParts:
    """Mixin before a strategy that writes folders.

    torch writes the parts as ever; each process then says the size and check sum of its own, and the first writes them down
    last. At an ``s3://`` address the parts go through a folder on this disk: each process sends its own, and loading
    fetches all once per host.
    """

    broadcast: Any
    global_rank: int
    local_rank: int
    world_size: int
    _remote: S3CheckpointIO | None = None

    @property
    def remote_checkpoints(self) -> S3CheckpointIO:
        """The Trainer's plugin if it has one for S3, else one for the region and server that AWS is configured with."""
        if self._remote is None:
            plugin = vars(self).get("_checkpoint_io")
            self._remote = plugin if isinstance(plugin, S3CheckpointIO) else S3CheckpointIO()
        return self._remote

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint; called on all processes.

        Raises:
            RuntimeError: On all of them, if one cannot write or send its part.

        """
        if not self._writes_parts:
            super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]
            return
        place = str(self.broadcast(filepath))
        is_remote, step = place.startswith(SCHEME), int(checkpoint.get("global_step", 0))
        folder = self._scratch() if is_remote else Path(place)

        def prepare() -> None:
            if self.global_rank == 0 and (folder / SUMS).is_file():  # of what was there before
                (folder / SUMS).unlink()

        together(prepare)
        try:
            super().save_checkpoint(checkpoint, folder)  # type: ignore[misc]
            own: dict[str, list[int]] = {}

            def send() -> None:
                for path in self._own(folder):
                    own[path.name] = self.remote_checkpoints.put_part(place, path) if is_remote else file_sum(path)

            together(send)
            parts: list[Any] = [None] * self.world_size
            dist.all_gather_object(parts, own)
            everything = {name: facts for one in parts for name, facts in one.items()}

            def finish() -> None:
                if self.global_rank == 0 and is_remote:
                    self.remote_checkpoints.finish_parts(place, step, everything)
                elif self.global_rank == 0:
                    write_sums(folder, everything)

            together(finish)
        finally:
            if is_remote:
                shutil.rmtree(folder, ignore_errors=True)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint; called on all processes."""
        place = str(self.broadcast(checkpoint_path))
        if not (self._writes_parts and place.startswith(SCHEME)):
            found: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)  # type: ignore[misc]
            return found
        folder = self._scratch()
        try:

            def fetch() -> None:
                if self.local_rank == 0:
                    self.remote_checkpoints.fetch_parts(place, folder)

            together(fetch)
            content: dict[str, Any] = {}
            load = super().load_checkpoint  # type: ignore[misc]
            together(lambda: content.update(load(folder, weights_only)))  # the folder is needed until all have
            return content
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def _writes_parts(self) -> bool:
        """Of our stages, and of Lightning's strategy."""
        return bool(getattr(self, "saves_parts", False) or getattr(self, "_save_distributed_checkpoint", False))

    def _scratch(self) -> Path:
        """One name for all processes; hosts need not share it."""
        name = self.broadcast(f"lightning-sagemaker-{uuid.uuid4().hex}")
        return Path(tempfile.gettempdir(), str(name))

    def _own(self, folder: Path) -> list[Path]:
        """What this process has written: torch's files begin with the rank, all else is the first process's."""
        files = [path for path in sorted(folder.iterdir()) if path.is_file()]
        own = [path for path in files if path.name.startswith(f"__{self.global_rank}_")]
        rest = [path for path in files if not path.name.startswith("__")] if self.global_rank == 0 else []
        return [*own, *rest]
