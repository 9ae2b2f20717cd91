# SPDX-License-Identifier: Apache-2.0
"""Sends a batch of tokens from a loader worker to the training process in one message, with the smallest integer types.

Torch puts each tensor into separate shared memory and sends a handle, with one connection each: some 0.3 ms of CPU time
per tensor, whatever its size. A batch of token ids is a few tensors of some ten kilobytes, of small numbers in 64 bits;
sent as bytes of the smallest type that holds them, it takes a fraction of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import default_convert, get_worker_info

MOST = 1 << 19
"""Maximum bytes of a message: a pipe copies 64 KB at a time, and above that torch's shared memory is faster."""
_SHORT = [(kind, np.iinfo(kind).min, np.iinfo(kind).max) for kind in (np.int8, np.int16, np.int32)]

Array = npt.NDArray[Any]


def hand_over(batch: object) -> object:
    """The ``collate_fn`` of a loader whose dataset returns complete batches: the training process receives an equal batch.

    Args:
        batch: A batch. Dictionaries of tensors are sent in one message; anything else is sent as torch does.

    """
    if type(batch) is not dict or not all(type(value) is Tensor for value in batch.values()):
        batch = default_convert(batch)  # type: ignore[no-untyped-call]
    if get_worker_info() is None or type(batch) is not dict:
        return batch
    types = {name: value.dtype for name, value in batch.items() if _is_plain(value)}
    values = {name: _shortened(value) if name in types else value for name, value in batch.items()}
    message = _Message(values, types)
    return batch if message.size > MOST else message


def size_of(batch: object) -> int | None:
    """Bytes of a batch of :func:`hand_over` in a message; None if it, or a part of it, is sent as torch does."""
    return batch.size if isinstance(batch, _Message) and batch.is_whole else None


class _Message:
    """A batch in transit: unpickling it returns the batch."""

    def __init__(self, values: dict[str, Any], types: dict[str, torch.dtype]) -> None:
        self._values, self._types = values, types
        self.size = sum(values[name].nbytes for name in types)
        self.is_whole = len(types) == len(values)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _arrived, (self._values, self._types)


def _arrived(values: dict[str, Any], types: dict[str, torch.dtype]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(value).to(types[name], copy=True) if name in types else value
        for name, value in values.items()
    }


def _is_plain(value: object) -> bool:
    return (
        type(value) is Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.is_contiguous()
        and not value.requires_grad
        and value.dtype is not torch.bfloat16  # NumPy has no bfloat16
        and not value.is_quantized
    )


def _shortened(tensor: Tensor) -> Array:
    """The same numbers, in the smallest signed integer type that holds them; other types unchanged."""
    array: Array = tensor.numpy()
    if array.dtype != np.int64 or not array.size:
        return array
    low, high = array.min(), array.max()  # in two passes, which take half the time of torch's one
    for kind, least, most in _SHORT:
        if least <= low and high <= most:
            return array.astype(kind)
    return array
