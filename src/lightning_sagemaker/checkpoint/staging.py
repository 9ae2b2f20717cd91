# SPDX-License-Identifier: Apache-2.0
"""A copy of weights and optimizer states in the host's memory, to be written while the training goes on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Staging:
    """Memory that is taken once and used for each checkpoint: pinned where the tensors are a GPU's."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str | int, ...], Tensor] = {}

    def copy(self, state: Any) -> Any:
        """The same containers with copies of their tensors, valid until the next call. Waits for the device.

        Args:
            state: Dictionaries and lists of tensors, of ``DTensor`` and of anything else, which is not copied.

        """
        self._buffers = {path: buffer for path, buffer in self._buffers.items() if _is_in(path, state)}
        copied = self._copy(state, ())
        if any(buffer.is_pinned() for buffer in self._buffers.values()):
            torch.cuda.synchronize()
        return copied

    def _copy(self, value: Any, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, DTensor):
            local = self._copy(value.to_local(), path)
            return DTensor.from_local(
                local, value.device_mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride()
            )
        if isinstance(value, Tensor):
            return self._buffer(value.detach(), path).copy_(value.detach(), non_blocking=True)
        if isinstance(value, dict):
            return {key: self._copy(entry, (*path, key)) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._copy(entry, (*path, index)) for index, entry in enumerate(value)]
        return value

    def _buffer(self, tensor: Tensor, path: tuple[str | int, ...]) -> Tensor:
        found = self._buffers.get(path)
        if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
            found = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[path] = found
        return found


def _is_in(path: tuple[str | int, ...], state: Any) -> bool:
    for key in path:
        try:
            state = state[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True
