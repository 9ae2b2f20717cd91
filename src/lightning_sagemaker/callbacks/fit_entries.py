# SPDX-License-Identifier: Apache-2.0
"""The entries that :class:`~lightning_sagemaker.callbacks.fit_state.FitState` writes into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_sagemaker._compat.phase import Phase
    from lightning_sagemaker._compat.trainer_memory import TrainerMemory
    from lightning_sagemaker._types import StateDict
    from lightning_sagemaker.checkpoint.metric_state import MetricStates
    from lightning_sagemaker.checkpoint.random_state import RandomState
    from lightning_sagemaker.collectives.buckets import Layout
    from lightning_sagemaker.data.position import Position


class Positions(TypedDict):
    """Positions of the loaders of one rank."""

    training: list[Position | None]
    validation: list[Position | None]


class RankState(TypedDict, total=False):
    """State of one rank. A checkpoint from an older version may lack the last entries.

    Attributes:
        random: States of the rank's random number generators.
        epoch_random: The same at the epoch's start, if its hooks are to be repeated.
        metrics: States of metrics.
        memory: The Trainer's own state.
        loaders: Positions of the rank's loaders.
        callbacks: Callback states that differ from rank zero's.
        buffers: Module buffers that differ from rank zero's.
        attributes: Plain attributes that have changed, by owner.
        flags: Names of frozen parameters, modules in evaluation mode, and untracked statistics.
        batches: Number of consumed batches of the epoch.
        step: Completed epochs, and optimizer steps.
        gradients: Accumulated ones, of manual optimization; in a checkpoint None where rank zero has the same.
        fit_loop: State of Lightning's loop, where the checkpoint may be written later.

    """

    random: RandomState
    epoch_random: RandomState | None
    metrics: MetricStates
    memory: TrainerMemory
    loaders: Positions
    callbacks: dict[str, StateDict] | None
    buffers: dict[str, Tensor]
    attributes: dict[str, dict[str, object]]
    flags: dict[str, list[str]]
    batches: int
    step: tuple[int, int]
    gradients: dict[str, Tensor | None]
    fit_loop: StateDict | None


class Facts(TypedDict):
    """The facts that positions depend on.

    Attributes:
        world_size: Number of ranks.
        replicas: Ranks with different data.
        batch_sizes: Samples of one rank in a batch, by loader; None if unknown.
        samples: Samples of the epoch that all ranks have consumed, by loader; None if unknown.
        ordered_by: Global batch size on which the order of samples depends, by loader; 0 if it does not.
        shuffled_by: Kind of order, by loader.
        lengths: Samples of the data set, by loader; None if unknown.

    """

    world_size: int
    replicas: int
    batch_sizes: list[int | None]
    samples: list[int | None]
    ordered_by: list[int]
    shuffled_by: list[object]
    lengths: list[int | None]


class FitEntry(Facts, total=False):
    """A fit in a checkpoint (with ``ranks``), or of one rank for a restart in the same job (with ``own``).

    Attributes:
        phase: The point in the loops, as a :class:`~lightning_sagemaker._compat.phase.Phase`'s value.
        cut: Whether the epoch ended early, at the last step.
        batches: Number of consumed batches of the epoch.
        accumulate: Number of batches of an optimizer step.
        buckets: DDP's buckets of the next step.
        gradients: Accumulated gradients of rank zero.
        ranks: State of each rank.
        own: State of this rank.
        again: Whether to repeat the hooks of a batch's end.
        fits: Fits that the process had completed before, with checkpoints in the same folder.

    """

    phase: str
    cut: bool
    batches: int
    accumulate: int
    buckets: Layout | None
    gradients: dict[str, Tensor | None]
    ranks: list[RankState]
    own: RankState
    again: Callable[[], None]
    fits: int


class Noted(TypedDict):
    """The content that this rank is about to save.

    Attributes:
        phase: The point in the loops.
        own: This rank's state.
        lacks_gradients: Whether accumulated gradients are missing in the checkpoint.
        cut: Whether the epoch ended early, at the last step.
        buckets: DDP's buckets of the next step.
        facts: The facts that positions depend on.

    """

    phase: Phase
    own: RankState
    lacks_gradients: bool
    cut: bool
    buckets: Layout | None
    facts: Facts
