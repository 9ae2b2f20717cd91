# SPDX-License-Identifier: Apache-2.0
"""Ranks that share one sharded replica of a model: they are lost together, and join together.

A replica consists of consecutive ranks, so its hosts are consecutive, too.
"""

from __future__ import annotations

from collections.abc import Collection


def replica_of(rank: int, size: int) -> range:
    """The ranks of the replica that a rank belongs to.

    Args:
        rank: A rank of the job.
        size: Number of ranks of a replica.

    """
    first = rank - rank % size
    return range(first, first + size)


def complete(ranks: Collection[int], size: int) -> list[int]:
    """The elements of ``ranks`` whose replica is complete among them, in the same order.

    Args:
        ranks: Ranks of the job.
        size: Number of ranks of a replica.

    """
    there = set(ranks)
    return [rank for rank in ranks if there.issuperset(replica_of(rank, size))]
