# SPDX-License-Identifier: Apache-2.0
"""Records the operations that create tensors while a model is built, so that any of them can be recomputed bit for bit.

The model is built as usual: each operation runs, on real tensors, with the same random numbers. It is also
recorded, with the state of the random number generator before it, so that the tensors need not stay in memory: those that
were not used recently are freed, and recomputed by replaying their operations when something uses them.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, UntypedStorage
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_sagemaker._compat import pytree
from lightning_sagemaker.parallel.allocator import trim_heap

_SMALL = 64 * 2**10
"""Bytes below which a storage stays in memory."""
_IN_USE = 64 * 2**20
"""Total bytes of larger storages in memory; the one that was used last may exceed it."""
_OVERWRITING = frozenset({"aten::copy_", "aten::fill_", "aten::normal_", "aten::uniform_", "aten::zero_"})
"""Operations that overwrite all previous values of a tensor."""


class Ref(NamedTuple):
    """A reference to a tensor: a storage's key and the view."""

    key: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def over(self, storage: UntypedStorage) -> Tensor:
        """The view on ``storage``."""
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)


class _Drawn(NamedTuple):
    """Stands for a random number generator."""


@dataclass(frozen=True)
class _Operation:
    """A recorded operation.

    Attributes:
        run: The operation.
        arguments: Its positional and keyword arguments; :class:`Ref` stands for tensors.
        random: State of the random numbers before it, if it draws any.
        made: Index of a tensor in the result -> key of its new storage.
        written: Keys of the storages that it writes into.
        read: Keys of the storages whose previous values it depends on.
        overwrites: Key of the storage that it overwrites completely.

    """

    run: OpOverload
    arguments: tuple[Sequence[object], Mapping[str, object]]
    random: Tensor | None
    made: Mapping[int, int]
    written: frozenset[int]
    read: frozenset[int]
    overwrites: int | None


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that records all operations on the CPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations: list[_Operation] = []
        self._writers: dict[int, list[int]] = defaultdict(list)  # key of a storage -> indices of operations
        self._keys: dict[int, int] = {}  # id of a live storage -> key
        self._living: dict[int, weakref.ref[UntypedStorage]] = {}
        self._given: dict[int, UntypedStorage] = {}  # storages from before, or from a file
        self._in_use: OrderedDict[int, int] = OrderedDict()  # key -> bytes
        self._emptied: dict[int, int] = {}
        self._freed = 0

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        given = [leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if _is_plain(leaf)]
        for tensor in given:
            self._fill(tensor.untyped_storage())
        changed = [tensor for tensor in _changed(func, args, kwargs) if _is_plain(tensor)]
        self._keep_given(changed)
        random = _random_state(func, kwargs)
        arguments = pytree.tree_map(self._described, (args, dict(kwargs)))
        written = frozenset(self._key(tensor.untyped_storage()) for tensor in changed)
        result = func(*args, **kwargs)
        if any(not self.knows(tensor) for tensor in changed):  # `set_`: from now on treated as one from before
            return result
        made = {
            number: self._key(leaf.untyped_storage())
            for number, leaf in enumerate(pytree.tree_leaves(result))
            if _is_plain(leaf) and not self.knows(leaf)
        }
        read = {self._key(tensor.untyped_storage()) for tensor in given}
        if made or changed:
            whole = next(iter(written)) if _name(func) in _OVERWRITING and all(map(_is_whole, changed)) else None
            self._record(_Operation(func, arguments, random, made, written, frozenset(read - {whole}), whole))
        self._empty_some(read | set(made.values()))
        return result

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor was created or used while this mode was active."""
        return id(tensor.untyped_storage()) in self._keys

    def ref(self, tensor: Tensor) -> Ref:
        """The reference, for :meth:`value`, of a tensor that :meth:`knows` returns True for."""
        key = self._key(tensor.untyped_storage())
        return Ref(key, tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)

    def value(self, ref: Ref) -> Tensor:
        """Recompute a tensor as it was after the last recorded operation."""
        storage = self._storage(ref.key)
        return ref.over(_copy(storage) if storage is self._given.get(ref.key) else storage)

    def fill_all(self) -> None:
        """Recompute the values of all live tensors."""
        for key in list(self._emptied):
            storage = self._living[key]()
            if storage is not None:
                self._fill(storage)

    def _record(self, operation: _Operation) -> None:
        for key in operation.written | set(operation.made.values()):
            self._writers[key].append(len(self._operations))
        self._operations.append(operation)

    def _key(self, storage: UntypedStorage) -> int:
        key = self._keys.get(id(storage))
        return self._new_key(storage) if key is None else key

    def _new_key(self, storage: UntypedStorage) -> int:
        place, key = id(storage), len(self._living)
        self._keys[place] = key
        self._living[key] = weakref.ref(storage, lambda _: self._forget(place, key))
        if storage.nbytes() >= _SMALL:
            self._in_use[key] = storage.nbytes()
        return key

    def _forget(self, place: int, key: int) -> None:
        self._keys.pop(place, None)
        self._in_use.pop(key, None)
        self._emptied.pop(key, None)

    def _described(self, leaf: object) -> object:
        if _is_plain(leaf):
            if not self.knows(leaf):
                storage = leaf.untyped_storage()
                self._given[self._key(storage)] = storage
            return self.ref(leaf)
        return _Drawn() if isinstance(leaf, torch.Generator) else leaf

    def _keep_given(self, changed: Sequence[Tensor]) -> None:
        """Keep a copy of a storage from before when an operation writes into it."""
        for tensor in changed:
            self._described(tensor)
            key, storage = self._key(tensor.untyped_storage()), tensor.untyped_storage()
            if self._given.get(key) is storage:
                self._given[key] = _copy(storage)

    def _empty_some(self, used: set[int]) -> None:
        for key in used & self._in_use.keys():
            self._in_use.move_to_end(key)
        excess = sum(self._in_use.values()) - _IN_USE
        if excess > 0 and self._freed > _IN_USE:
            trim_heap()
            self._freed = 0
        while excess > 0 and next(iter(self._in_use)) not in used:
            key, size = self._in_use.popitem(last=False)
            excess -= size
            storage = self._living[key]()
            if storage is None or key in self._given:
                continue
            size = storage.nbytes()
            try:
                storage.resize_(0)
                self._emptied[key] = size
                self._freed += size
            except RuntimeError:  # a numpy array shares it
                continue

    def _fill(self, storage: UntypedStorage) -> None:
        key = self._keys.get(id(storage))
        if key is not None and key in self._emptied:
            size = self._emptied.pop(key)
            storage.resize_(size)
            storage.copy_(self._storage(key))
            self._in_use[key] = size

    @torch.no_grad()
    def _storage(self, key: int) -> UntypedStorage:
        """A new storage with the values after the last operation."""
        made: dict[int, UntypedStorage] = {}
        with torch.random.fork_rng(devices=[]):
            for operation in self._needed(key):
                self._run_again(operation, made)
        return made[key] if key in made else self._given[key]

    def _needed(self, key: int) -> list[_Operation]:
        """The operations that a storage depends on, in order."""
        found: set[int] = set()
        left = [(key, len(self._operations))]
        while left:
            for number in self._history(*left.pop()):
                if number not in found:
                    found.add(number)
                    left += [(read, number) for read in self._operations[number].read]
        return [self._operations[number] for number in sorted(found)]

    def _history(self, key: int, before: int) -> list[int]:
        """The operations that created a storage or wrote into it since it was last overwritten."""
        writers = self._writers[key]
        writers = writers[: bisect_left(writers, before)]
        for place in reversed(range(len(writers))):
            if self._operations[writers[place]].overwrites == key:
                return [*writers[: 0 if key in self._given else 1], *writers[place:]]
        return writers

    def _run_again(self, operation: _Operation, made: dict[int, UntypedStorage]) -> None:
        generator = torch.Generator()
        if operation.random is not None:
            generator.set_state(operation.random)
            torch.set_rng_state(operation.random)
        for key in operation.written - made.keys():
            made[key] = _copy(self._given[key])

        def actual(leaf: object) -> object:
            if isinstance(leaf, Ref):
                return leaf.over(made[leaf.key] if leaf.key in made else self._given[leaf.key])
            return generator if isinstance(leaf, _Drawn) else leaf

        args, kwargs = pytree.tree_map(actual, operation.arguments, is_leaf=_is_stand_in)
        leaves = pytree.tree_leaves(operation.run(*args, **kwargs))
        for number, key in operation.made.items():
            made[key] = leaves[number].untyped_storage()


def _copy(storage: UntypedStorage) -> UntypedStorage:
    return storage.clone()  # type: ignore[no-untyped-call,no-any-return]


def _is_stand_in(leaf: object) -> bool:
    return isinstance(leaf, Ref | _Drawn)


def _is_plain(leaf: object) -> TypeGuard[Tensor]:
    """Whether ``leaf`` is a plain CPU tensor with its own memory."""
    if not isinstance(leaf, Tensor) or isinstance(leaf, FakeTensor):
        return False
    return leaf.device.type == "cpu" and leaf.layout == torch.strided and not leaf.is_quantized


def _is_whole(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()


def _name(func: OpOverload) -> str:
    return func._schema.name


def _changed(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    """The tensors that an operation writes into."""
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return pytree.tree_leaves(found)


def _random_state(func: OpOverload, kwargs: Mapping[str, object]) -> Tensor | None:
    """State of the generator that an operation draws from; None if it draws nothing."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    generator = kwargs.get("generator")
    return generator.get_state() if isinstance(generator, torch.Generator) else torch.get_rng_state()
