# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of which each process writes its part: a folder of torch's distributed checkpoint and what is not in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from lightning_sagemaker._compat.dcp import read_whole
from lightning_sagemaker.checkpoint.resume import META
from lightning_sagemaker.collectives.agreement import together
from lightning_sagemaker.job import SageMakerJobError


def save_parts(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint whose weights and optimizer states are this process's. Collective over all processes.

    The rest is written last: a folder without it is not whole.

    Args:
        checkpoint: As Lightning collects it; its large entries are taken out.
        path: Folder.

    """
    is_first = dist.get_rank() == 0
    optimizers = checkpoint.pop("optimizer_states", [])
    parts: dict[str, Any] = {"state_dict": checkpoint.pop("state_dict")}
    for number, state in enumerate(optimizers):
        parts[f"optimizer_{number}"] = {str(index): entry for index, entry in state["state"].items()}
    checkpoint["param_groups"] = [state["param_groups"] for state in optimizers]

    def prepare() -> None:
        if is_first:
            path.mkdir(parents=True, exist_ok=True)
            (path / META).unlink(missing_ok=True)

    def finish() -> None:
        if is_first:
            temporary = path / f".{META}"
            torch.save(checkpoint, temporary)
            temporary.replace(path / META)

    together(prepare)
    dcp.save(parts, checkpoint_id=path)  # raises on all processes, too
    together(finish)


def load_parts(path: Path) -> dict[str, Any]:
    """Read a checkpoint of :func:`save_parts` whole, whoever has written it.

    Raises:
        SageMakerJobError: If it is not whole.

    """
    if not (path / META).is_file():
        raise SageMakerJobError(
            f"{path} holds no {META}, so saving was interrupted. HINT: go on from an earlier checkpoint."
        )
    checkpoint: dict[str, Any] = torch.load(path / META, map_location="cpu", weights_only=True)
    parts = read_whole(path)
    groups = checkpoint.pop("param_groups")
    checkpoint["state_dict"] = parts["state_dict"]
    checkpoint["optimizer_states"] = [
        {
            "state": {int(index): entry for index, entry in parts.get(f"optimizer_{number}", {}).items()},
            "param_groups": group,
        }
        for number, group in enumerate(groups)
    ]
    return checkpoint


class StageFiles:
    """Mixin before a strategy: writes parts if it was told to, and reads both kinds."""

    saves_parts = False
    broadcast: Any

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint; called on all processes."""
        if self.saves_parts:
            save_parts(checkpoint, Path(self.broadcast(filepath)))
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint whole, on each process."""
        path = Path(checkpoint_path)
        if path.is_dir():
            return load_parts(path)
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)  # type: ignore[misc]
        return checkpoint
