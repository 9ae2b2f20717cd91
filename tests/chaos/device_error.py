# SPDX-License-Identifier: Apache-2.0
"""An error of a device at a random place of a step, without a device: the exception that torch raises for it.

What a broken device does besides, that all later calls fail as well, needs one.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import torch

PLACES = ("forward", "backward", "optimizer")
_RANK = os.environ.get("RANK", "0")
_ERROR: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)  # from torch 2.8 on


def ask(folder: Path, rank: int, rng: random.Random) -> None:
    """Have a rank of the job fail when it comes to one of the places."""
    new = folder / "error.new"
    new.write_text(rng.choice(PLACES))
    new.rename(folder / f"error-{rank}")


def may_happen(folder: Path, place: str) -> None:
    """Fail once if that was asked of this rank.

    Raises:
        AcceleratorError: As of a device.

    """
    path = folder / f"error-{_RANK}"
    if path.exists() and path.read_text() == place:
        path.unlink()
        raise _ERROR("CUDA error: unspecified launch failure")


def may_happen_backward(folder: Path, loss: torch.Tensor) -> None:
    """The same in the backward pass of a loss, which may have none."""
    if loss.requires_grad:
        loss.register_hook(lambda gradient: may_happen(folder, "backward"))
