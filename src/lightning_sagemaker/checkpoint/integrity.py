# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint is complete and undamaged: checksums of its files, and the sizes that torch has recorded."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import IO

META = "meta.pt"
"""File in the folder of a sharded checkpoint: Lightning's, with everything that is not a tensor; written last."""
CHECKSUMS = "sums.json"
"""File in such a folder, if this package wrote it: size and checksum of each file."""
_BLOCK = 8 * 2**20
"""Bytes per read."""
_FOLDER = 0x10  # MS-DOS's attribute of a folder, in a zip archive's directory


def damage_of(path: Path) -> str | None:
    """What is damaged in a file or folder, by its checksums, which torch does not verify when it loads; None if nothing."""
    for file in (path / META,) if path.is_dir() else (path,):
        if (damage := archive_damage(file)) is not None:
            return damage
    if path.is_dir():
        return _missing_part(path) or _changed_part(path)
    return None


def archive_damage(file: Path | IO[bytes]) -> str | None:
    """What is damaged in an archive of ``torch.save``, by the checksums in it; None if nothing."""
    try:
        with zipfile.ZipFile(file) as archive:
            if any(member.external_attr & _FOLDER for member in archive.infolist()):
                return "a tensor is marked as a folder, of which torch reads nothing"
            bad = archive.testzip()
    except Exception as error:  # a damaged archive can raise anything
        return first_line(error)
    return None if bad is None else f"the checksum of {bad} is wrong"


def size_and_checksum(path: Path) -> list[int]:
    """Size and checksum of a file."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]


def write_checksums(folder: Path, sums: dict[str, list[int]]) -> None:
    """Save the :func:`size_and_checksum` of each file of a sharded checkpoint, as its last file."""
    temporary = folder / f".{CHECKSUMS}"
    temporary.write_text(json.dumps(sums))
    temporary.replace(folder / CHECKSUMS)


def _changed_part(path: Path) -> str | None:
    """The first damaged file, as a message; folders of other programs have no list of checksums."""
    try:
        sums: dict[str, list[int]] = json.loads((path / CHECKSUMS).read_text())
        bad = [name for name, wanted in sums.items() if size_and_checksum(path / name) != wanted]
    except FileNotFoundError as error:
        return None if str(error.filename).endswith(CHECKSUMS) else first_line(error)
    except (OSError, ValueError, AttributeError) as error:
        return first_line(error)
    return f"the checksum of {bad[0]} is wrong" if bad else None


def _missing_part(path: Path) -> str | None:
    from torch.distributed.checkpoint import FileSystemReader

    try:
        metadata = FileSystemReader(path).read_metadata()
    except Exception as error:
        return first_line(error)
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


def first_line(error: BaseException) -> str:
    """Type and first line of an error, shortened."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
