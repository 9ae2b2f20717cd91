# SPDX-License-Identifier: Apache-2.0
"""The entries that :class:`~lightning_sagemaker.callbacks.fabric_state.FabricState` writes into a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_sagemaker._types import StateDict
    from lightning_sagemaker.callbacks.fabric_values import Flags, Groups
    from lightning_sagemaker.checkpoint.metric_state import MetricEntry
    from lightning_sagemaker.checkpoint.random_state import RandomState
    from lightning_sagemaker.collectives.buckets import Layout
    from lightning_sagemaker.data.position import Position


class LoopRankEntry(TypedDict):
    """State of one rank: random states, loader position, buffers that differ from rank zero's, metrics, generators.

    ``passed`` has the loaders' positions at the ends of the epoch's earlier loops over batches, ``begin`` the random states
    and generators of its beginning, ``carried`` the loaders of which the loop's body takes batches itself.
    """

    random: RandomState
    position: Position | None
    buffers: dict[str, Tensor]
    metrics: dict[str, MetricEntry]
    generators: StateDict
    passed: list[Position | None]
    begin: BeginRankEntry | None
    carried: dict[int, CarriedEntry]


class CarriedEntry(TypedDict):
    """Iterations of a loader, the current one included, and the position in it."""

    calls: int
    position: Position


class BeginRankEntry(TypedDict):
    """What a rank's epoch begins with."""

    random: RandomState
    generators: StateDict


class BeginEntry(TypedDict):
    """Values and schedulers that the epoch begins with, names of converted ones, and the settings of optimizers' groups."""

    values: StateDict
    others: list[str]
    groups: Groups


class ReducerEntry(TypedDict):
    """DDP's buckets of the next step, and whether it broadcasts buffers before it; None without DDP."""

    buckets: Layout | None
    sends: bool | None


class LoopEntry(TypedDict):
    """The content of a checkpoint in addition to the user's objects.

    Attributes:
        epoch: The current epoch.
        batch: Number of batches of the epoch's current loop over batches that have been trained on.
        step: Number of batches of all epochs.
        calls: Number of iterations of Fabric's loader.
        batch_size: Samples of one rank in a batch; None if unknown.
        samples: Samples of the epoch that all ranks have consumed; None if unknown.
        modules: State of the modules among the user's objects.
        ranks: State of each rank.
        passed: For each earlier loop over batches of the epoch: iterations of the loader before it, and number of batches.
        loaders: Iterations of the loaders that Fabric has set up before the loop, by place, when the epoch began; None if
            unknown.
        left: Whether the last of these has been left, and no other has begun.
        begin: What the epoch begins with; None before the first.

    """

    epoch: int
    batch: int
    step: int
    calls: int
    batch_size: int | None
    samples: int | None
    modules: list[ReducerEntry]
    ranks: list[LoopRankEntry]
    passed: list[tuple[int, int]]
    left: bool
    loaders: dict[int, int] | None
    begin: BeginEntry | None


class WrittenEntry(LoopEntry):
    """The entry as it is in a file; files of earlier versions lack the additional fields.

    Attributes:
        flags: Which parts of the modules are frozen, or in evaluation mode.
        others: Names of converted values.

    """

    flags: Flags
    others: list[str]
