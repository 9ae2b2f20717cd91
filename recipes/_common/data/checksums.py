# SPDX-License-Identifier: Apache-2.0
"""The manifest entry of one file, and the comparison of the file with it."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

FAST = "crc32"
"""Preferred for verification: three times as fast. Not part of a cache's digest, as older caches lack it."""

_SLOW = "blake2b"
_BLOCK = 1 << 20


def file_entry(path: Path) -> dict[str, Any]:
    """The manifest entry of a file: its size in bytes and its checksums."""
    return {"bytes": path.stat().st_size, _SLOW: checksum(path, _SLOW), FAST: checksum(path, FAST)}


def find_damage(folder: Path, name: str, entry: Mapping[str, Any]) -> str | None:
    """Message if a file is missing or has the wrong size, else ``None``; does not read the file."""
    try:
        size = (folder / name).stat().st_size
    except OSError as error:
        return f"{name} is missing ({error.strerror})"
    expected = entry.get("bytes", size)
    return None if size == expected else f"{name} has {size} bytes, expected {expected}"


def find_change(folder: Path, name: str, entry: Mapping[str, Any]) -> str | None:
    """Message if a file's content has changed, else ``None``, also if the manifest has no checksum of it."""
    return compare(name, entry, partial(checksum, folder / name))


def find_fault(folder: Path, name: str, entry: Mapping[str, Any]) -> str | None:
    """Message if a file is missing or differs from its entry, else ``None``; its size is compared before it is read."""
    return find_damage(folder, name, entry) or find_change(folder, name, entry)


def compare(name: str, entry: Mapping[str, Any], read: Callable[[str], str]) -> str | None:
    """Message if a checksum differs from the entry's, else ``None``; ``read`` returns the checksum of a kind."""
    kind = checksum_kind(entry)
    if kind is None:
        return None
    found = read(kind)
    return None if found == entry[kind] else f"{name} was written with {kind} {entry[kind]}, but now has {found}"


def checksum_kind(entry: Mapping[str, Any]) -> str | None:
    """The checksum to compare a file by; older manifests may have only the slow one, or none (``None``)."""
    return next((kind for kind in (FAST, _SLOW) if entry.get(kind)), None)


def checksum(path: Path, kind: str) -> str:
    """``crc32`` or ``blake2b`` of a file."""
    with path.open("rb") as file:
        return checksum_of(iter(partial(file.read, _BLOCK), b""), kind)


def checksum_of(blocks: Iterable[bytes], kind: str) -> str:
    """``crc32`` or ``blake2b`` of the concatenated blocks."""
    crc, digest = 0, hashlib.blake2b(digest_size=16)
    for block in blocks:
        if kind == FAST:
            crc = zlib.crc32(block, crc)
        else:
            digest.update(block)
    return f"{crc:08x}" if kind == FAST else digest.hexdigest()
