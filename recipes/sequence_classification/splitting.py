# SPDX-License-Identifier: Apache-2.0
"""Stratified splits: each part has the classes in the same proportions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def stratified(labels: Sequence[Any], shares: Sequence[float], seed: int) -> list[list[int]]:
    """Indices of the rest and of each part, with the classes in the same proportions, in ascending order.

    Args:
        labels: Labels of the samples; each combination of several labels is a class; scores are not stratified.
        shares: Share of each part.
        seed: Seed of the shuffle.

    """
    keys = [str(label) for label in labels]
    if all(_is_score(label) for label in labels):
        keys = [""] * len(labels)
    groups: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    random = np.random.Generator(np.random.PCG64(seed))
    parts: list[list[int]] = [[] for _ in range(len(shares) + 1)]
    bounds = np.cumsum(shares)
    # One quota over all classes: rounding each class by itself would take nothing from the rare ones.
    shuffled: npt.NDArray[np.int64] = np.concatenate([random.permutation(groups[key]) for key in sorted(groups)])
    place = (np.arange(len(shuffled)) * _GOLDEN) % 1.0
    chosen = np.searchsorted(bounds, place, side="right")
    for index, part in zip(shuffled, chosen, strict=True):
        parts[(int(part) + 1) % len(parts)].append(int(index))
    return [sorted(part) for part in parts]


_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are spread evenly over [0, 1) in any stretch of them (Weyl, 1916)."""


def _is_score(label: Any) -> bool:
    return isinstance(label, float)
