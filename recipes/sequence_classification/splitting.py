# SPDX-License-Identifier: Apache-2.0
"""Stratified splits: each part has the classes in the same proportions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def stratified(labels: Sequence[Any], shares: Sequence[float], seed: int) -> list[npt.NDArray[np.int64]]:
    """Indices of the rest and of each part, with the classes in the same proportions, in ascending order.

    Args:
        labels: Labels of the samples; each combination of several labels is a class; scores are not stratified.
        shares: Share of each part.
        seed: Seed of the shuffle.

    """
    is_class = not all(map(_is_score, labels))
    numbers: dict[str, int] = {}
    codes = np.fromiter(
        (numbers.setdefault(str(label) if is_class else "", len(numbers)) for label in labels), np.int64
    )
    groups = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
    random = np.random.Generator(np.random.PCG64(seed))
    bounds = np.cumsum(shares)
    # One quota over all classes: rounding each class by itself would take nothing from the rare ones.
    ordered = [groups[numbers[key]] for key in sorted(numbers)]
    shuffled: npt.NDArray[np.int64] = np.concatenate([random.permutation(group) for group in ordered])
    place = (np.arange(len(shuffled)) * _GOLDEN) % 1.0
    chosen = (np.searchsorted(bounds, place, side="right") + 1) % (len(shares) + 1)
    return [np.sort(shuffled[chosen == part]) for part in range(len(shares) + 1)]


_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are spread evenly over [0, 1) in any stretch of them (Weyl, 1916)."""


def _is_score(label: Any) -> bool:
    return isinstance(label, float)
