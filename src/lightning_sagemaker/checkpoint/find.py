# SPDX-License-Identifier: Apache-2.0
"""Find the checkpoint that a restarted job resumes from: the complete one with the most steps."""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lightning_sagemaker.checkpoint.atomic_write import CheckpointError

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint


META = "meta.pt"
"""File in the folder of a sharded checkpoint: Lightning's, with everything that is not a tensor; written last."""


STATE = "lightning_sagemaker"
"""Entry that AutoResume adds to a checkpoint."""
SUMS = "sums.json"
"""File in such a folder, if this package wrote it: size and checksum of each file."""
WEIGHTS_ONLY = "it contains weights only"
"""Why a checkpoint is not resumed from, as a message."""
_BLOCK = 8 * 2**20
"""Bytes per read."""
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
            report(f"{path} is incomplete; skipping it ({_first_line(error)})")
    others = [found.path.name for found in candidates if fits not in (None, found.fits)]
    if others:
        report(of_other_fits(folder, others))
    candidates = [found for found in candidates if found.path.name not in others]
    for found in sorted(candidates, key=lambda one: (one.step, one.exact, one.path.name), reverse=True):
        damage = _damage(found.path)
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
        if _damage(path) is not None or "PytorchStreamReader" in str(error):  # torch reads less than zipfile does
            raise
        raise CheckpointError(
            f"{path} is complete, but holds more than tensors and plain containers, and is not loaded, as that could run"
            f" code ({_refused(error)}). HINT: {hint}."
            if weights_only
            else f"{path} is complete, but cannot be loaded ({_first_line(error)}). HINT: this may be another version of"
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


_FOLDER = 0x10  # MS-DOS's attribute of a folder, in a zip archive's directory


def _damage(path: Path) -> str | None:
    """Verify a file's checksums, which torch does not when it loads; returns the damage, or None."""
    for file in (path / META,) if path.is_dir() else (path,):
        try:
            with zipfile.ZipFile(file) as archive:
                if any(member.external_attr & _FOLDER for member in archive.infolist()):
                    return "a tensor is marked as a folder, of which torch reads nothing"
                bad = archive.testzip()
        except Exception as error:  # a damaged archive can raise anything
            return _first_line(error)
        if bad is not None:
            return f"the checksum of {bad} is wrong"
    if path.is_dir():
        return _missing_part(path) or _changed_part(path)
    return None


def file_sum(path: Path) -> list[int]:
    """Size and checksum of a file."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]


def write_sums(folder: Path, sums: dict[str, list[int]]) -> None:
    """Save the :func:`file_sum` of each file of a sharded checkpoint, as its last file."""
    temporary = folder / f".{SUMS}"
    temporary.write_text(json.dumps(sums))
    temporary.replace(folder / SUMS)


def _changed_part(path: Path) -> str | None:
    """The first damaged file, as a message; folders of other programs have no list of checksums."""
    try:
        sums: dict[str, list[int]] = json.loads((path / SUMS).read_text())
        bad = [name for name, wanted in sums.items() if file_sum(path / name) != wanted]
    except FileNotFoundError as error:
        return None if str(error.filename).endswith(SUMS) else _first_line(error)
    except (OSError, ValueError, AttributeError) as error:
        return _first_line(error)
    return f"the checksum of {bad[0]} is wrong" if bad else None


def _missing_part(path: Path) -> str | None:
    from torch.distributed.checkpoint import FileSystemReader

    try:
        metadata = FileSystemReader(path).read_metadata()
    except Exception as error:
        return _first_line(error)
    ends: dict[str, int] = {}
    for storage in (metadata.storage_data or {}).values():
        end = storage.offset + storage.length
        ends[storage.relative_path] = max(end, ends.get(storage.relative_path, 0))
    for name, end in ends.items():
        part = path / name
        size = part.stat().st_size if part.exists() else 0
        if size < end:
            return f"{name} has {size} of {end} bytes"
    return None


def _refused(error: Exception) -> str:
    """The refused class, extracted from torch's long message."""
    found = re.search(r"(?:WeightsUnpickler error|weights_only):\s*(.{1,160})", str(error))
    return found[1].split(" was not an allowed", 1)[0] if found else _first_line(error)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
