# SPDX-License-Identifier: Apache-2.0
"""A Trainer's checkpoint: written by the stages of a pipeline, and read complete, in the format of one process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from lightning_sagemaker._compat.dcp import read_full
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.integrity import META
from lightning_sagemaker.checkpoint.sharded_entries import OPTIMIZER, by_name
from lightning_sagemaker.collectives.agreement import run_and_sync_errors

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, StateDict

_GROUPS = "param_groups"


def write_stages(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint whose weights and optimizer states are those of this process's pipeline stages. Collective.

    The rest is written last: a folder without it is incomplete.

    Args:
        checkpoint: Checkpoint as Lightning collects it; its sharded entries are removed.
        folder: Output folder; created if missing.

    """
    is_first = dist.get_rank() == 0
    optimizers = checkpoint.pop("optimizer_states", [])
    states = by_name({str(index): entry for index, entry in state["state"].items()} for state in optimizers)
    parts: StateDict = {"state_dict": checkpoint.pop("state_dict"), **states}
    checkpoint[_GROUPS] = [state[_GROUPS] for state in optimizers]

    def prepare() -> None:
        if is_first:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / META).unlink(missing_ok=True)

    def finish() -> None:
        if is_first:
            temporary = folder / f".{META}"
            torch.save(checkpoint, temporary)
            temporary.replace(folder / META)

    run_and_sync_errors(prepare)
    dcp.save(parts, checkpoint_id=folder)  # raises on all processes, too
    run_and_sync_errors(finish)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a complete checkpoint of Lightning's Trainer, on the CPU, in the format of its single-process strategies.

    Args:
        path: Checkpoint file, or folder of a sharded checkpoint.

    Raises:
        CheckpointError: If the checkpoint is incomplete, or not Lightning's.

    """
    meta = path / META if path.is_dir() else path
    if not meta.is_file():
        raise CheckpointError(
            f"{path} is not a file, and holds no {META}: it is not a Lightning checkpoint, or saving was interrupted. HINT:"
            " resume from another checkpoint."
        )
    checkpoint: Checkpoint = torch.load(meta, map_location="cpu", weights_only=True)
    if path.is_dir():
        parts: Checkpoint = read_full(path)
        checkpoint["state_dict"] = parts["state_dict"]
        groups = checkpoint.pop(_GROUPS, None)  # of pipeline stages, whose parts have the states only
        if groups is None:
            names = sorted((name for name in parts if name.startswith(OPTIMIZER)), key=_number)
            checkpoint["optimizer_states"] = [_by_number(parts[name]) for name in names]
        else:
            states = [(parts.get(name, {}), own) for name, own in by_name(groups).items()]  # SGD has no state
            checkpoint["optimizer_states"] = [_of_stages(*pair) for pair in states]
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise CheckpointError(f"{path} holds no state_dict. HINT: name a checkpoint that a Trainer has written.")
    return checkpoint


def _number(name: str) -> int:
    return int(name.removeprefix(OPTIMIZER))


def _by_number(state: Checkpoint) -> StateDict:
    """An optimizer's state by parameter index, in the order of its groups, instead of by name."""
    names = [name for group in state[_GROUPS] for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    groups = [{**group, "params": [numbers[name] for name in group["params"]]} for group in state[_GROUPS]]
    return {"state": {numbers[name]: entry for name, entry in state.get("state", {}).items()}, _GROUPS: groups}


def _of_stages(state: Checkpoint, groups: object) -> StateDict:
    return {"state": {int(number): entry for number, entry in state.items()}, _GROUPS: groups}
