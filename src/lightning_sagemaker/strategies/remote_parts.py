# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of which each process writes its part, at an address in S3."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import torch.distributed as dist

from lightning_sagemaker.checkpoint.s3 import SCHEME, S3CheckpointIO
from lightning_sagemaker.collectives.agreement import together


class RemoteParts:
    """Mixin before a strategy that writes folders: at an ``s3://`` address they go through a folder on this disk.

    torch writes the parts as ever; then each process sends its own, and the first one, when all have, the object without
    which a checkpoint is not whole. Loading fetches and checks all parts once per host.
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
            RuntimeError: On all of them, if one cannot send its part.

        """
        address = str(self.broadcast(filepath))
        if not self._goes_by_parts(address):
            super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]
            return
        step = int(checkpoint.get("global_step", 0))
        folder = self._scratch()
        try:
            super().save_checkpoint(checkpoint, folder)  # type: ignore[misc]
            sent: dict[str, list[int]] = {}

            def send() -> None:
                for path in self._own(folder):
                    sent[path.name] = self.remote_checkpoints.put_part(address, path)

            together(send)
            parts: list[Any] = [None] * self.world_size
            dist.all_gather_object(parts, sent)
            everything = {name: facts for one in parts for name, facts in one.items()}

            def finish() -> None:
                if self.global_rank == 0:
                    self.remote_checkpoints.finish_parts(address, step, everything)

            together(finish)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint; called on all processes."""
        address = str(self.broadcast(checkpoint_path))
        if not self._goes_by_parts(address):
            found: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)  # type: ignore[misc]
            return found
        folder = self._scratch()
        try:

            def fetch() -> None:
                if self.local_rank == 0:
                    self.remote_checkpoints.fetch_parts(address, folder)

            together(fetch)
            content: dict[str, Any] = super().load_checkpoint(folder, weights_only)  # type: ignore[misc]
            dist.barrier()
            return content
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _goes_by_parts(self, address: str) -> bool:
        parts = getattr(self, "saves_parts", False) or getattr(self, "_save_distributed_checkpoint", False)
        return bool(parts) and address.startswith(SCHEME)

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
