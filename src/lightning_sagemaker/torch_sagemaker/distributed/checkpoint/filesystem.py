# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.distributed.checkpoint.filesystem``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint import Metadata, SavePlan, SavePlanner
    from torch.distributed.checkpoint.storage import WriteResult


class DistributedFileSystemReader(FileSystemReader):
    """torch's ``FileSystemReader``."""


class DistributedFileSystemWriter(FileSystemWriter):
    """torch's ``FileSystemWriter`` with hooks.

    Args:
        path: Folder of the checkpoint.
        pre_write_hooks: Called without arguments before this process writes.
        post_write_hooks: Called without arguments by the coordinator when all processes have written.
        kwargs: Arguments of ``torch.distributed.checkpoint.FileSystemWriter``.

    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pre_write_hooks: Sequence[Callable[[], object]] = (),
        post_write_hooks: Sequence[Callable[[], object]] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(path, **kwargs)
        self._before, self._after = tuple(pre_write_hooks or ()), tuple(post_write_hooks or ())

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        """Write this process's shards."""
        for hook in self._before:
            hook()
        return super().write_data(plan, planner)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata; called by the coordinator."""
        super().finish(metadata, results)
        for hook in self._after:
            hook()
