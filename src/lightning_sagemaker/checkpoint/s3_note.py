# SPDX-License-Identifier: Apache-2.0
"""The object next to a checkpoint in S3, without which it is incomplete: its steps, size and checksum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lightning_sagemaker.checkpoint.find import STATE, fits_before, holds_weights_only

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint


@dataclass(frozen=True)
class Note:
    """What is known of a checkpoint without reading it.

    Attributes:
        step: Optimizer steps of the run.
        size: Bytes.
        crc32: Checksum; 0 for a checkpoint of several files.
        fits: Fits that the script had completed before the one that saved it.
        etag: S3's name of the object's content; empty if unknown. Another one: the object was replaced, or copied.
        exact: Whether it has the state for an exact resume.
        weights: Whether it contains weights only, from which nothing is resumed.
        parts: File name -> size, checksum, and number of the folder that it was uploaded to; None for a single file.

    """

    step: int
    size: int
    crc32: int
    fits: int = 0
    etag: str = ""
    exact: bool = True
    weights: bool = False
    parts: Mapping[str, list[int]] | None = None

    def encode(self) -> bytes:
        """Content of the object."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None}).encode()

    def describes(self, content: bytes) -> bool:
        """Whether the checkpoint has the size and checksum."""
        return (len(content), zlib.crc32(content)) == (self.size, self.crc32)

    def keys(self, key: str) -> dict[str, tuple[str, int, int]]:
        """File name -> key, size and checksum of each part of the checkpoint ``key``."""
        parts = (self.parts or {}).items()
        return {name: ("/".join([key, *map(str, number), name]), size, crc) for name, (size, crc, *number) in parts}


def note_of(checkpoint: Checkpoint, size: int, crc32: int, etag: str) -> Note:
    """The note of a checkpoint that is one object."""
    step, fits = int(checkpoint.get("global_step", 0)), fits_before(checkpoint)
    return Note(step, size, crc32, fits, etag, STATE in checkpoint, holds_weights_only(checkpoint))


def decode(content: bytes) -> Note:
    """Parse the content of the object.

    Raises:
        ValueError: If it is not one of these objects.

    """
    try:
        found = json.loads(content)
        parts = found.get("parts")
        if parts is not None:
            parts = {str(name): [int(value) for value in facts] for name, facts in parts.items()}
            if any(len(facts) not in (2, 3) for facts in parts.values()):
                raise ValueError("a part has neither two nor three values")
        return Note(
            step=int(found["step"]),
            size=int(found["size"]),
            crc32=int(found["crc32"]),
            fits=int(found.get("fits", 0)),  # this and what follows is not in older ones
            etag=str(found.get("etag", "")),
            exact=bool(found.get("exact", True)),
            weights=bool(found.get("weights", False)),
            parts=parts,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
