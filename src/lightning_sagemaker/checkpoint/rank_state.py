# SPDX-License-Identifier: Apache-2.0
"""A rank's part of a sharded training state in one file, to resume with the same number of ranks.

Of a ``DTensor`` only the local shard is written: its placement follows from the module, which is sharded again before
the file is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.sharded_entries import by_name

if TYPE_CHECKING:
    from torch.distributed.checkpoint.state_dict import OptimizerStateType, ValueType

    from lightning_sagemaker._types import Checkpoint, StateDict


def write_rank(path: Path, parts: StateDict, rest: Checkpoint | None) -> None:
    """Write a file.

    Args:
        path: Path of the file.
        parts: Weights and optimizer states of this process, in CPU memory.
        rest: Everything else; None on all but one rank.

    """
    torch.save({"parts": _local(parts), "rest": rest}, path)


def read_rank(path: Path, module: nn.Module, optimizers: Sequence[Optimizer]) -> Checkpoint | None:
    """Load a file's weights and optimizer states. Collective.

    Args:
        path: File of this rank, which a process of this job has written.
        module: Module, sharded as when the file was written.
        optimizers: Optimizers of the module.

    Returns:
        Everything else; None on all but one rank.

    Raises:
        CheckpointError: If the module or an optimizer does not match the file.

    """
    # The file is trusted: its folder is writable by this user only, or it was received from a rank of this job.
    content = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
    parts = content["parts"]
    with torch.no_grad():
        model = _filled(get_model_state_dict(module), parts["state_dict"], "state_dict")
        set_model_state_dict(module, cast("dict[str, ValueType]", model))
        for name, optimizer in by_name(optimizers).items():
            states = _filled(get_optimizer_state_dict(module, optimizer), parts[name], name)
            set_optimizer_state_dict(module, optimizer, cast("OptimizerStateType", states))
    rest: Checkpoint | None = content["rest"]
    return rest


def _local(value: object) -> object:
    if isinstance(value, DTensor):
        return value.to_local()
    if isinstance(value, dict):
        return {key: _local(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_local(entry) for entry in value]
    return value


def _filled(current: object, saved: object, place: str) -> object:
    """``saved``, with its shards copied into the ``DTensor`` at the same place of ``current``."""
    if isinstance(current, DTensor):
        local = current.to_local()
        if not isinstance(saved, Tensor) or saved.shape != local.shape:
            raise CheckpointError(f"{place} is sharded differently in the copy in memory. HINT: start the job again.")
        local.copy_(saved)
        return current
    if isinstance(saved, dict):
        entries = current if isinstance(current, dict) else {}
        return {key: _filled(entries.get(key), entry, f"{place}/{key}") for key, entry in saved.items()}
    if isinstance(saved, list):
        of = current if isinstance(current, list) and len(current) == len(saved) else [None] * len(saved)
        return [_filled(one, entry, f"{place}/{n}") for n, (one, entry) in enumerate(zip(of, saved, strict=True))]
    return saved.clone() if isinstance(saved, Tensor) else saved  # not mapped, as the file may be removed
