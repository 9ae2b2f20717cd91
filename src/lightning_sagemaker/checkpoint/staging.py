# SPDX-License-Identifier: Apache-2.0
"""Copies weights and optimizer states to CPU memory, to be written while training continues."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from lightning_sagemaker._compat.dtensor import local_of, with_local
from lightning_sagemaker.checkpoint.deferred import DeferredCopies

_Path = tuple[str | int, ...]
_Key = TypeVar("_Key", str, int)


@dataclass(frozen=True)
class _Place:
    """Memory that a tensor is copied to.

    Attributes:
        layout: Properties of the tensor that the write plan depends on.
        memory: Memory of this process's shard.
        copy: ``memory``, as a ``DTensor`` if the tensor is one; created once, as creating one takes longer than most
            copies.

    """

    layout: tuple[object, ...]
    memory: Tensor
    copy: Tensor


class Staging:
    """Memory that is allocated once and reused for each checkpoint: pinned for GPU tensors.

    Attributes:
        version: Changes after each copy whose containers, or tensor shapes or placements, differ from those of the
            previous copy; values that are not tensors may differ.

    """

    def __init__(self) -> None:
        self._places: dict[_Path, _Place] = {}
        self._used: dict[_Path, _Place] = {}
        self._structure: list[object] = []
        self._found: list[object] = []
        self._deferred: DeferredCopies | None = None
        self._deferred_keys: Collection[str] = ()
        self.version = 0

    def copy(
        self, state: dict[str, object], deferred: DeferredCopies | None = None, keys: Collection[str] = ()
    ) -> dict[str, object]:
        """Copy containers and their tensors; valid until the next call. Waits for the device.

        Args:
            state: Dictionaries and lists of tensors, of ``DTensor`` and of anything else, which is not copied.
            deferred: Receives the copies to be made later.
            keys: Entries of ``state`` whose CPU tensors are copied later.

        """
        self._used, self._found = {}, []
        self._deferred, self._deferred_keys = deferred, keys
        with torch.no_grad():
            copied = self._copy_entries(state, ())
        if any(place.memory.is_pinned() for place in self._used.values()):
            torch.cuda.synchronize()
        self._places = self._used
        if self._found != self._structure:
            self._structure = self._found
            self.version += 1
        return copied

    def _copy_entries(self, entries: Mapping[_Key, object], path: _Path) -> dict[_Key, object]:
        return {key: self._copy(entry, (*path, key)) for key, entry in entries.items()}

    def _copy(self, value: object, path: _Path) -> object:
        if isinstance(value, Tensor):
            return self._copy_tensor(value, path)
        if isinstance(value, dict):
            self._found.append((dict, path, tuple(value)))
            return self._copy_entries(value, path)
        if isinstance(value, list):
            self._found.append((list, path, len(value)))
            return [self._copy(entry, (*path, index)) for index, entry in enumerate(value)]
        self._found.append(type(value))
        return value

    def _copy_tensor(self, tensor: Tensor, path: _Path) -> Tensor:
        local = local_of(tensor)
        layout: tuple[object, ...] = (local.shape, local.dtype, local.is_cuda)
        if isinstance(tensor, DTensor):
            layout = (*layout, tensor.shape, tensor.stride(), tensor.placements, tensor.device_mesh)
        place = self._places.get(path)
        if place is None or place.layout != layout:
            place = _make_place(tensor, local, layout)
        self._used[path] = place
        self._found.append(layout)
        if self._deferred is not None and path[0] in self._deferred_keys and not local.is_cuda:
            self._deferred.add(local, place.memory)
        else:
            place.memory.copy_(local, non_blocking=True)
        return place.copy


def _make_place(tensor: Tensor, local: Tensor, layout: tuple[object, ...]) -> _Place:
    memory = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
    if not isinstance(tensor, DTensor):
        return _Place(layout, memory, memory)
    return _Place(layout, memory, with_local(tensor, memory))
