# SPDX-License-Identifier: Apache-2.0
"""Ranks that have one replica of a model together, each a shard: they are lost together, and admitted together.

A replica is of consecutive ranks, so its hosts are too.
"""

from __future__ import annotations

from collections.abc import Collection


def replica_of(rank: int, size: int) -> range:
    """The ranks of a rank's replica.

    Args:
        rank: A rank of the job.
        size: Ranks of a replica.

    """
    first = rank - rank % size
    return range(first, first + size)


def complete(ranks: Collection[int], size: int) -> list[int]:
    """Those of ``ranks`` whose replica is among them, in the same order.

    Args:
        ranks: Ranks of the job.
        size: Ranks of a replica.

    """
    there = set(ranks)
    return [rank for rank in ranks if there.issuperset(replica_of(rank, size))]
