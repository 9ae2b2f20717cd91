# SPDX-License-Identifier: Apache-2.0
"""A checksum of a stream's batches: whether it gives the same ones when a resumed run reads it again."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import torch

from lightning_sagemaker.checkpoint.random_state import RandomState, equal_states, random_state

_LOOKED_AT = 3
"""Batches after which a stream is assumed to draw nothing from the training process's generators; the first draws seeds."""
_FEW = 16
"""Number of values of a tensor, and of entries of a container, that are read: they show which samples it has."""


OTHERS = (
    "gave other batches when it was read again, up to where the run is resumed: some samples of this epoch are seen twice,"
    " and others never. HINT: seed what shuffles it (webdataset: shuffle(1000, rng=random.Random(0))), or give it state_dict"
    " and load_state_dict."
)


class Seen:
    """The batches of one iteration.

    Attributes:
        checksum: None if they are not to be compared: the loader draws from the training process's generators, of which a
            run that reads again restores the state only after it.

    """

    def __init__(self) -> None:
        self.checksum: int | None = 0
        self._number = 0

    def begin(self) -> None:
        """Start an iteration."""
        self.checksum, self._number = 0, 0

    def equals(self, other: int | None) -> bool:
        """Whether these are the batches of another checksum, or cannot be compared with them."""
        return None in (other, self.checksum) or other == self.checksum

    def add(self, batch: object, before: RandomState | None) -> None:
        """Add a batch; ``before`` is the state of the process's generators before it was read, if it was read there."""
        self._number += 1
        if before is not None and 1 < self._number <= _LOOKED_AT and not equal_states(before, random_state()):
            self.checksum = None
        if self.checksum is not None:
            for part in _parts(batch):
                self.checksum = zlib.crc32(part, self.checksum)


def _parts(value: object, depth: int = 3) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield str(tuple(value.shape)).encode()
        if value.device.type == "cpu" and not value.is_sparse and value.layout is torch.strided:
            yield value.detach().flatten()[:_FEW].contiguous().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield str(value.shape).encode() + (b"" if value.dtype.hasobject else value.ravel()[:_FEW].tobytes())
    elif isinstance(value, (str, bytes, int, float)):
        yield repr(value)[:1000].encode()
    elif depth and isinstance(value, (Mapping, Sequence)):
        for one in islice(value.values() if isinstance(value, Mapping) else value, _FEW):
            yield from _parts(one, depth - 1)
