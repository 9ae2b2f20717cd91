# SPDX-License-Identifier: Apache-2.0
"""Find the checkpoint that a restarted job resumes from: the complete one with the most steps."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.integrity import META, damage_of, first_line

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint


STATE = "lightning_sagemaker"
"""Entry that AutoResume adds to a checkpoint."""
WEIGHTS_ONLY = "it contains weights only"
"""Why a checkpoint is not resumed from, as a message."""
_OBJECTS = (
    "keep objects out of hyperparameters and callback states; if you trust the file, use AutoResume(weights_only=False)"
)


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to resume from.

    Attributes:
        path: A file, or the folder of a sharded checkpoint.
        step: Optimizer steps of the run.
        exact: Whether it has the state for an exact resume, unlike a checkpoint that was saved on an exception.
        fits: Fits that the script had completed before the one that saved it.

    """

    path: Path
    step: int
    exact: bool = True
    fits: int = 0


def find_checkpoint(
    folder: str | Path,
    report: Callable[[str], None] = print,
    weights_only: bool = True,
    fits: int | None = None,
    hint: str = _OBJECTS,
) -> FoundCheckpoint | None:
    """Find the complete checkpoint with the most steps, by contents, as file times may be those of a download.

    Args:
        folder: Folder of ``*.ckpt`` files or folders; need not exist.
        report: Called with a message for each checkpoint that cannot be used.
        weights_only: Load data only. ``False`` allows the files to run code: use it for trusted checkpoints only.
        fits: Consider only checkpoints of the fit before which the script had completed this many. None for all.
        hint: HINT for a checkpoint that holds more than data.

    Returns:
        The checkpoint; None if there is none.

    Raises:
        CheckpointError: If resuming from another one would lose work: one is not readable, or is complete but holds
            more than data.

    """
    try:
        names = sorted(os.listdir(folder))  # Path.glob returns nothing for an unreadable folder
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise _unreadable(error) from error
    candidates = []
    for path in (Path(folder, name) for name in names if name.endswith(".ckpt")):
        try:
            candidates.append(FoundCheckpoint(path, *_read_step(path, weights_only, hint)))
        except PermissionError as error:
            raise _unreadable(error) from error
        except CheckpointError:
            raise
        except Exception as error:
            report(f"{path} is incomplete; skipping it ({first_line(error)})")
    others = [found.path.name for found in candidates if fits not in (None, found.fits)]
    if others:
        report(of_other_fits(folder, others))
    candidates = [found for found in candidates if found.path.name not in others]
    for found in sorted(candidates, key=lambda one: (one.step, one.exact, one.path.name), reverse=True):
        damage = damage_of(found.path)
        if damage is None:
            return found
        report(f"{found.path} (step {found.step}) is damaged; skipping it ({damage})")
    return None


def of_other_fits(folder: str | Path, names: list[str]) -> str:
    """The message for checkpoints of other fits, which are not resumed from."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"{folder}: {names[0]}{more} of another fit of this script, not resumed from. HINT: to continue from it, pass"
        " ckpt_path= to fit."
    )


def _read_step(path: Path, weights_only: bool, hint: str) -> tuple[int, bool, int]:
    """Step, exactness and fits of a checkpoint. Cheap, as tensors are memory-mapped and not read."""
    file = path / META if path.is_dir() else path
    for part in path.iterdir() if path.is_dir() else (path,):
        part.open("rb").close()  # below, errors count as damage
    with file.open("rb") as opened:
        if not zipfile.is_zipfile(opened):
            raise ValueError("truncated torch.save file")
    try:
        content: Checkpoint = torch.load(file, map_location="cpu", mmap=True, weights_only=weights_only)
    except Exception as error:  # a damaged file, or classes of the script, may raise anything
        if damage_of(path) is not None or "PytorchStreamReader" in str(error):  # torch reads less than zipfile does
            raise
        raise CheckpointError(
            f"{path} is complete, but holds more than tensors and plain containers, and is not loaded, as that could run"
            f" code ({_refused(error)}). HINT: {hint}."
            if weights_only
            else f"{path} is complete, but cannot be loaded ({first_line(error)}). HINT: this may be another version of"
            " the classes in it; move it elsewhere to resume from an older one."
        ) from error
    if holds_weights_only(content):
        raise ValueError(WEIGHTS_ONLY)
    return int(content["global_step"]), STATE in content, fits_before(content)


def holds_weights_only(content: Checkpoint) -> bool:
    """Whether a checkpoint of Lightning's Trainer has no state to resume from."""
    return "loops" in content and "callbacks" not in content


def fits_before(content: Checkpoint) -> int:
    """Number of fits that the script had completed before the one that saved a checkpoint; 0 for other programs."""
    return int((content.get(STATE) or {}).get("fits", 0))


def _unreadable(error: PermissionError) -> CheckpointError:
    return CheckpointError(
        f"{error.filename} could not be read ({error.strerror}), and may be the newest checkpoint. HINT: let this process's"
        " user read it, or move it elsewhere."
    )


def _refused(error: Exception) -> str:
    """The refused class, extracted from torch's long message."""
    found = re.search(r"(?:WeightsUnpickler error|weights_only):\s*(.{1,160})", str(error))
    return found[1].split(" was not an allowed", 1)[0] if found else first_line(error)
