# SPDX-License-Identifier: Apache-2.0
"""Sends nested values from one process to the others of its group: new structures once, tensors each time.

Pickling a batch costs more than sending it. So a value is split into its tensors, which are sent directly, and its
structure, which is pickled once and then identified by a number. Shapes are sent when they change.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker.parallel.containers import like
from lightning_sagemaker.parallel.degrees import PipelineError
from lightning_sagemaker.parallel.inputs import NotSent
from lightning_sagemaker.parallel.trace import TensorNumber

_HEADER = 3
_NEW, _FAILED = -1, -2
_MOST = 16
"""Number of cached structures, such as those of training, validation and an epoch's last batch."""
_PACKED, _ALIGNED = 64 * 2**10, 16
"""Bytes below which tensors are sent together in one message, and the alignment of each in it."""
_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
_Use = tuple[str | None, int]
"""Purpose of a value, and the number of its structure."""
_PLAIN = (int, bool, str, bytes, type(None), TensorNumber, torch.dtype)
"""Types that are compared for equality; objects of other types are sent each time."""


class StructureChannel:
    """Broadcasts the values of one process to all processes of a group.

    Args:
        group: Process group for tensors on the CPU.
        members: Global ranks of the group.
        source: Global rank of the sender.
        rank: Global rank of this process.

    A receiver may need only some of the tensors: it records which ones it reads in its first use of a structure, and
    receives only those in later uses for the same purpose.

    Attributes:
        is_source: Whether this process sends.
        pickled: Number of structures that were pickled or unpickled here.
        sent_bytes: Bytes that this process has sent.

    """

    def __init__(self, group: dist.ProcessGroup, members: Sequence[int], source: int, rank: int) -> None:
        self._group, self._source = group, source
        self.is_source = rank == source
        self._targets = [member for member in members if member != source] if self.is_source else []
        self._known: list[object] = []
        self._shapes: list[int] = []
        self._number = _NEW
        self._used: set[_Use] = set()
        self._reads: dict[_Use, frozenset[int]] = {}  # tensors that this process reads
        self._needs: dict[_Use, dict[int, frozenset[int]]] = {}  # on the source: by receiver; elsewhere: by the source
        self.pickled = 0
        self.sent_bytes = 0

    def share(self, value: object, use: str | None = None) -> object:
        """Broadcast ``value``: the source gets the object itself, others a copy with its tensors on the CPU. Collective.

        Args:
            value: Nested tensors, numbers and objects that can be pickled; ignored on all processes but the source.
            use: Purpose of the value, the same on all processes; None if everything may be read.

        Raises:
            PipelineError: On all processes, if the value contains something that cannot be pickled.

        """
        if not self.is_source:
            return self._receive(use)
        structure, tensors = take_apart(value)
        tensors = [tensor.detach().cpu().contiguous() for tensor in tensors]
        number = next((place for place, known in enumerate(self._known) if same(known, structure)), _NEW)
        pickled = b""
        failure: str | None = None
        if number == _NEW:
            try:
                pickled = pickle.dumps(structure)
                self.pickled += 1
            except Exception as error:  # classes of a script may raise anything
                number, failure = _FAILED, _unsendable(error)
                pickled, tensors = failure.encode(), []
        shapes = [word for tensor in tensors for word in (_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape)]
        is_new_shape = shapes != self._shapes and failure is None
        header = torch.tensor([number, len(pickled), len(shapes) if is_new_shape else _NEW])
        messages = [header]
        if pickled:
            messages.append(torch.frombuffer(bytearray(pickled), dtype=torch.uint8))
        if is_new_shape and shapes:
            messages.append(torch.tensor(shapes))
        self._send(dict.fromkeys(self._targets, messages))
        if failure is not None:
            raise PipelineError(failure)
        self._remember(number, structure, shapes)
        needs = self._needed(use, len(tensors))
        kinds = {needed: _messages([tensors[number] for number in sorted(needed)]) for needed in {*needs.values()}}
        self._send({target: kinds[needs[target]] for target in self._targets})
        return value

    def share_failure(self, message: str) -> None:
        """Called by the source instead of :meth:`share`, which then raises ``PipelineError`` on the other processes."""
        text = bytearray(message.encode())
        parts = [torch.tensor([_FAILED, len(text), _NEW]), torch.frombuffer(text, dtype=torch.uint8)]
        self._send(dict.fromkeys(self._targets, parts))

    def _send(self, messages: Mapping[int, Sequence[Tensor]]) -> None:
        pairs = [(target, message) for target, one in messages.items() for message in one]
        works = [dist.isend(message, target, self._group) for target, message in pairs]
        for work in works:
            if work is not None:
                work.wait()
        self.sent_bytes += sum(message.nbytes for _, message in pairs)

    def note_reads(self, use: str, numbers: Collection[int]) -> None:
        """Record which tensors of the last shared value this process reads, as indices in :func:`take_apart`'s order."""
        self._reads[use, self._number] = frozenset(numbers)

    def knows_reads(self, use: str) -> bool:
        """Whether :meth:`note_reads` was called for a value with the last one's structure."""
        return (use, self._number) in self._reads

    def _needed(self, use: str | None, count: int) -> dict[int, frozenset[int]]:
        """The tensors that each receiver needs: all at first; the second time receivers send a list, which is collective."""
        key, everything = (use, self._number), frozenset(range(count))
        if use is None or key not in self._used:
            self._used.add(key)
            return dict.fromkeys((*self._targets, self._source), everything)
        if key not in self._needs and self.is_source:
            self._needs[key] = {target: self._receive_reads(target, count) for target in self._targets}
        elif key not in self._needs:
            needed = self._reads.get(key, everything) & everything
            dist.send(torch.tensor([number in needed for number in range(count)]), self._source, self._group)
            self._needs[key] = {self._source: needed}
        return self._needs[key]

    def _receive_reads(self, target: int, count: int) -> frozenset[int]:
        mask = torch.empty(count, dtype=torch.bool)
        dist.recv(mask, target, self._group)
        return frozenset(mask.nonzero().flatten().tolist())

    def _receive(self, use: str | None) -> object:
        number, length, words = self._take(_HEADER, torch.int64).tolist()
        pickled = bytes(self._take(length, torch.uint8).numpy()) if length else b""
        if number == _FAILED:
            raise PipelineError(pickled.decode(errors="replace"))
        if number == _NEW:
            structure: object = pickle.loads(pickled)
            self.pickled += 1
        else:
            structure = self._known[number]
        shapes = self._shapes if words == _NEW else self._take(words, torch.int64).tolist() if words else []
        self._remember(number, structure, shapes)
        tensors = self._receive_tensors(shapes, use)
        return _map_leaves(structure, lambda leaf: _value_of(leaf, tensors))

    def _receive_tensors(self, shapes: Sequence[int], use: str | None) -> list[Tensor]:
        words = iter(shapes)
        kinds = [(_DTYPES[word], [next(words) for _ in range(next(words))]) for word in words]
        needed = self._needed(use, len(kinds))[self._source]
        sizes = [_bytes(*kind) if number in needed else None for number, kind in enumerate(kinds)]
        packed = self._take(sum(_aligned(size) for size in sizes if size is not None and size < _PACKED), torch.uint8)
        place = 0
        tensors: list[Tensor] = []
        for (dtype, shape), size in zip(kinds, sizes, strict=True):
            if size is None:
                tensors.append(NotSent.of(shape, dtype))
            elif size < _PACKED:
                tensors.append(packed[place : place + size].view(dtype).view(shape))
                place += _aligned(size)
            else:
                tensor = torch.empty(shape, dtype=dtype)
                dist.recv(tensor, self._source, self._group)
                tensors.append(tensor)
        return tensors

    def _take(self, length: int, dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(length, dtype=dtype)
        if length:
            dist.recv(tensor, self._source, self._group)
        return tensor

    def _remember(self, number: int, structure: object, shapes: Sequence[int]) -> None:
        """Cache a structure, in the same order on all processes, so that the numbers agree."""
        if number == _NEW:
            if len(self._known) == _MOST:
                for known in (self._known, self._used, self._reads, self._needs):
                    known.clear()
            self._known.append(structure)
        self._number = len(self._known) - 1 if number == _NEW else number
        self._shapes = list(shapes)


def take_apart(value: object) -> tuple[object, list[Tensor]]:
    """Split a value into its structure, with indices in place of tensors, and the tensors.

    Floating-point numbers, such as logged values that change each time, are the elements of one more tensor, the last.

    Args:
        value: Any structure; mappings, lists and tuples are traversed.

    """
    tensors = tensors_in(value)
    places = iter(range(len(tensors)))
    numbers: list[float] = []

    def note(leaf: object) -> object:
        if _is_plain(leaf):
            return TensorNumber(next(places))
        if type(leaf) is float:
            numbers.append(leaf)
            return TensorNumber(-len(numbers))
        return leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf

    structure = _map_leaves(value, note)
    return structure, [*tensors, torch.tensor(numbers, dtype=torch.float64)] if numbers else tensors


def tensors_in(value: object) -> list[Tensor]:
    """The tensors of a value that are sent as tensors, in order."""
    found: list[Tensor] = []

    def note(leaf: object) -> object:
        if _is_plain(leaf):
            found.append(leaf)
        return leaf

    _map_leaves(value, note)
    return found


def _is_plain(leaf: object) -> TypeGuard[Tensor]:
    if not isinstance(leaf, Tensor) or type(leaf) not in (Tensor, torch.nn.Parameter, NotSent):
        return False
    return leaf.layout == torch.strided and (type(leaf) is NotSent or not leaf.is_quantized)


def _value_of(leaf: object, tensors: Sequence[Tensor]) -> object:
    if not isinstance(leaf, TensorNumber):
        return leaf
    return tensors[leaf.number] if leaf.number >= 0 else float(tensors[-1][-leaf.number - 1])


def _map_leaves(value: object, change: Callable[[object], object]) -> object:
    """A copy of ``value`` with ``change`` applied to all leaves."""
    if isinstance(value, Mapping):
        return like(value, {key: _map_leaves(entry, change) for key, entry in value.items()})
    if isinstance(value, list | tuple):
        return like(value, [_map_leaves(entry, change) for entry in value])
    return change(value)


def same(one: object, other: object) -> bool:
    """Whether two structures are known to be equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(left, right) for left, right in zip(one, other, strict=True))
    return type(one) in _PLAIN and one == other


def _messages(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Messages: small tensors packed into one vector of bytes, then the large ones."""
    pieces: list[Tensor] = []
    for tensor in tensors:
        if tensor.nbytes < _PACKED:
            pieces.append(tensor.reshape(-1).view(torch.uint8))
            pieces.append(torch.zeros(_aligned(tensor.nbytes) - tensor.nbytes, dtype=torch.uint8))
    packed = torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)
    return [packed] * bool(packed.numel()) + [tensor for tensor in tensors if tensor.nbytes >= _PACKED]


def _bytes(dtype: torch.dtype, shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel()) * dtype.itemsize


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _unsendable(error: Exception) -> str:
    return (
        f"the step's batch, return value or logged values cannot be sent to the other stages ({type(error).__name__}:"
        f" {error}). HINT: use tensors, numbers and containers of them."
    )
