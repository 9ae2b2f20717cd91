# SPDX-License-Identifier: Apache-2.0
"""The shuffled order of an epoch without a table: the sample at a position is a function of the position.

Consecutive samples are read together: blocks of consecutive samples are shuffled, and within a window of some blocks
their samples. Each of the two is a keyed permutation, a Feistel network over two digits of the number (Black and
Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): no memory, and the same time for any number of samples.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
_Hashes = npt.NDArray[np.uint64]
_Places = TypeVar("_Places", int, Integers)

_ROUNDS = 6
"""Rounds of the network: with four, the numbers of rises and the distances of neighbors differ from random ones."""

_MASK = (1 << 64) - 1
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_HALF = np.uint64(32)
_SMALL = 256
"""Maximum size of a permutation that is drawn by sorting: a network over few numbers is not random enough."""
_AT_ONCE = 8192
"""Positions per chunk, so that intermediate results stay in the CPU cache."""
_BLOCKS, _SHORT, _WINDOWS = 1, 2, 3
"""Streams of random numbers."""


@dataclass(frozen=True)
class Blocks:
    """Grouping of samples that are too many, or too remote, to be read one by one.

    Args:
        size: Consecutive samples that are read together.
        window: Number of blocks whose samples are shuffled together.
        near: Whether each process reads as few blocks as possible: a contiguous part of each sorted step.

    """

    size: int
    window: int
    near: bool = False

    holds_no_order = True  # the layout of samples is not part of a checkpoint


@dataclass(frozen=True)
class Order:
    """The order of the samples in one epoch: a permutation that depends on its arguments only.

    Args:
        size: Number of samples.
        seed: Seed of the run.
        epoch: Number of the epoch.
        block: Consecutive samples that are read together. The last block may be shorter.
        window: Number of blocks whose samples are shuffled together; ``None`` for all, so that blocks do not matter.

    Raises:
        ValueError: If a number is too small.

    """

    size: int
    seed: int = 0
    epoch: int = 0
    block: int = 1
    window: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("size", 0), ("block", 1), ("window", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value} was given. HINT: it must be at least {least}.")

    def __call__(self, positions: Integers) -> Integers:
        """The samples at ``positions``, each in ``[0, size)``; returns the same shape. Fastest for ascending positions."""
        flat = np.ascontiguousarray(positions, dtype=np.int64).reshape(-1)
        result = np.empty_like(flat)
        windows = self._window_at(flat)
        borders = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(flat)]
        for begin, end in itertools.pairwise(borders):
            for part in range(begin, end, _AT_ONCE):
                within = slice(part, min(part + _AT_ONCE, end))
                result[within] = self._in_window(flat[within], int(windows[part]))
        return result.reshape(np.shape(positions))

    @cached_property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.size // self.block)

    @cached_property
    def windows(self) -> int:
        """Number of windows; all have the same number of blocks, or one more."""
        return 1 if self.window is None else max(1, -(-self.blocks // self.window))

    def _window_at(self, positions: Integers) -> Integers:
        if self.windows == 1:
            return np.zeros_like(positions)
        slots = self._slot_at(positions)
        least, more = divmod(self.blocks, self.windows)
        large = more * (least + 1)  # slots in the windows that have one slot more
        return np.where(slots < large, slots // (least + 1), more + (slots - large) // least)

    def _in_window(self, positions: Integers, window: int) -> Integers:
        key = _mix_one(self._windows_key + window)
        if self.windows == 1:  # all samples are shuffled together, whatever the blocks' order
            return permuted(positions, self.size, key)
        least, more = divmod(self.blocks, self.windows)
        first = window * least + min(window, more)
        last = (window + 1) * least + min(window + 1, more)
        begin, end = self._begin_of(first), self._begin_of(last)
        places = begin + permuted(positions - begin, end - begin, key)
        slots = self._slot_at(places)
        blocks = self._block_in(np.arange(first, last))
        return blocks[slots - first] * self.block + places - self._begin_of(slots)

    # Blocks are assigned to slots in random order; the short block, if there is one, to a random slot.

    @cached_property
    def _missing(self) -> int:
        """Number of samples that the last block is short of."""
        return self.blocks * self.block - self.size

    @cached_property
    def _short(self) -> int:
        """The slot of the last block."""
        return self._key(_SHORT) % self.blocks

    def _begin_of(self, slots: _Places) -> _Places:
        return slots * self.block - self._missing * (slots > self._short)

    def _slot_at(self, positions: Integers) -> Integers:
        end = (self._short + 1) * self.block - self._missing
        return np.where(positions < end, positions, positions + self._missing) // self.block

    def _block_in(self, slots: Integers) -> Integers:
        """The block in each slot."""
        full = np.where(slots > self._short, slots - 1, slots)
        is_short = slots == self._short
        full[is_short] = 0
        return np.where(is_short, self.blocks - 1, permuted(full, self.blocks - 1, self._blocks_key))

    @cached_property
    def _blocks_key(self) -> int:
        return self._key(_BLOCKS)

    @cached_property
    def _windows_key(self) -> int:
        return self._key(_WINDOWS)

    def _key(self, stream: int) -> int:
        return _mix_one(_mix_one(_mix_one(self.seed) + self.epoch) + stream)


def permuted(numbers: Integers, size: int, key: int) -> Integers:
    """A permutation of ``[0, size)`` at ``numbers``.

    Args:
        numbers: ``[n]``, each in ``[0, size)``.
        size: Size of the permutation, less than 2**62.
        key: Selects the permutation.

    """
    if size <= _SMALL:
        hashes = _mix(np.arange(size, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))
        return np.argsort(hashes, kind="stable")[numbers]
    first = math.isqrt(size - 1) + 1
    second = -(-size // first)
    found = _network(numbers.astype(np.uint64), first, second, key)
    # Cycle walking: fewer than ``first`` results are out of range; repeat for these until they are in range.
    outside = np.flatnonzero(found >= size)
    while len(outside):
        found[outside] = _network(found[outside], first, second, key)
        outside = outside[found[outside] >= size]
    return found.astype(np.int64)


def _network(numbers: _Hashes, first: int, second: int, key: int) -> _Hashes:
    """A permutation of ``[0, first * second)``: each digit in turn is moved by a hash of the other."""
    bases = np.uint64(first), np.uint64(second)
    quotient = numbers // bases[1]
    digits = [quotient, numbers - quotient * bases[1]]
    for number in range(_ROUNDS):
        moved = number % 2
        of_round = np.uint64((key + number * _GOLDEN) & _MASK)
        # The upper half of a hash, as a fraction, times the base: much faster than the rest of a division.
        shift = ((_mix(digits[1 - moved] * np.uint64(_MIX_1) + of_round) >> _HALF) * bases[moved]) >> _HALF
        total = digits[moved] + shift
        digits[moved] = total - bases[moved] * (total >= bases[moved])
    result: _Hashes = digits[0] * bases[1] + digits[1]
    return result


def _mix(x: _Hashes) -> _Hashes:
    """SplitMix64's hash (Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
    mixed: _Hashes = x ^ (x >> np.uint64(31))
    return mixed


def _mix_one(number: int) -> int:
    """The same hash, for a Python integer."""
    x = (number + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)
