# SPDX-License-Identifier: Apache-2.0
"""The optimizer steps of a custom loop with Fabric: gradients are summed over a rank's shards, then averaged over ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import nn

from lightning_sagemaker.recovery import data_shards, gradients
from lightning_sagemaker.recovery.adopted_gradients import AdoptedGradients
from lightning_sagemaker.recovery.buffers import FIRST, SharedBuffers
from lightning_sagemaker.recovery.rank_loss import is_rank_loss
from lightning_sagemaker.recovery.refused import CannotRecover

if TYPE_CHECKING:
    from lightning_sagemaker._types import FabricPrecision
    from lightning_sagemaker.recovery.fabric_loop import InJobLoop
    from lightning_sagemaker.recovery.job_rank import JobRank
    from lightning_sagemaker.recovery.wire import Reply


class InJobStrategy(Protocol):
    """What a loop uses of the strategy, :class:`~lightning_sagemaker.strategies.fabric_in_job.FabricInJobDDPStrategy`."""

    rank: JobRank | None
    loop: InJobLoop | None
    modules: list[nn.Module]
    is_asked: bool
    precision: FabricPrecision

    @property
    def shards(self) -> int:
        """Number of shards of the job."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Trained parameters."""

    @property
    def root_device(self) -> torch.device:
        """Device of this process."""

    def form(self, reply: Reply) -> None:
        """Create the group of a quorum."""


class FabricSteps:
    """Computes and averages the gradients of the current step, over all shards.

    Args:
        rank: This process as a rank of the job.
        world_size: Number of shards of the job.
        buffers: Buffers of the trained modules.

    Attributes:
        adopts: The adopted shard of the current pass through the loop's body; None in the pass of the own shard.
        fails: Whether a rank was lost before the step was committed, so that the step is repeated.
        changes: Whether a replacement waits for the end of this step.
        stepped: Whether the optimizer has stepped in this pass.
        averaged: Whether the gradients are the mean over all shards.
        flags: Maximum over ranks of the flags of the last :meth:`average`.

    """

    def __init__(self, rank: JobRank, world_size: int, buffers: SharedBuffers) -> None:
        self._rank, self._world_size, self._buffers = rank, world_size, buffers
        self._adopted = AdoptedGradients()
        self._statistics: list[torch.Tensor] | None = None
        self.flags: list[float] = []
        self.adopts: int | None = None
        self.fails = self.changes = self.stepped = self.averaged = False

    def begin_quorum(self) -> None:
        """Drop the results of the step in flight, as the ranks have changed."""
        self._adopted, self._statistics = AdoptedGradients(), None
        self.fails = self.changes = False

    @contextmanager
    def one_pass(self, adopts: int | None, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Context for a pass through the loop's body.

        Args:
            adopts: The adopted shard of the pass, which does not change the own shard's gradients; None for the own.
            parameters: Trained parameters.

        """
        self.adopts, self.stepped, self._statistics = adopts, False, None
        try:
            with self._adopted.own_pass() if adopts is None else self._adopted.one_pass(adopts, parameters):
                yield
            self.share_buffers()
        finally:
            self.adopts = None

    def step(self) -> None:
        """Record that the optimizer steps next."""
        self.stepped = True
        self.share_buffers()

    def share_buffers(self) -> None:
        """Take over the first shard's buffers, after the last backward pass, which may use those of its forward pass."""
        if self._statistics is not None:
            self._buffers.put(self._statistics)
            self._statistics = None

    @contextmanager
    def backward(self, parameters: Sequence[nn.Parameter], averages: bool = True) -> Iterator[None]:
        """Context for a backward pass.

        Args:
            parameters: Trained parameters.
            averages: Whether the gradients are averaged next.

        Raises:
            CannotRecover: If the optimizer has already stepped in this pass, which could not be repeated.

        """
        if self.stepped:
            raise CannotRecover(
                "fabric.backward was called after optimizer.step within one batch, so the step could not be repeated"
            )
        if self.adopts is None:
            self.averaged = False
            self._adopted.keep_base(parameters)
            yield
        else:
            with self._adopted.backward(self.adopts, parameters, averages):
                yield

    def average(self, parameters: Sequence[nn.Parameter], step: int, flags: torch.Tensor) -> bool:
        """Average the gradients over all shards. Collective, in the pass of the own batch.

        Args:
            parameters: Trained parameters.
            step: The last committed step.
            flags: Flags of this rank; :attr:`flags` becomes the maximum over ranks.

        Returns:
            False if the optimizer must not step: in an adopted shard's pass, or if a rank was lost.

        """
        if self.fails or self.adopts is not None:
            return False
        if self.averaged:
            return True
        self._adopted.add()
        means, ok, statistics = None, True, []
        try:
            work = dist.all_reduce(flags, dist.ReduceOp.MAX, async_op=True)
            means = gradients.means(parameters, self._world_size)
            statistics = self._buffers.of_first(data_shards.rank_of(FIRST, self._rank.order, self._world_size))
            assert work is not None
            work.wait()
        except RuntimeError as error:
            if not is_rank_loss(error, self._rank, step):
                raise
            ok = False
        decision = self._rank.client.commit(step + 1, ok=ok and self._rank.is_whole(parameters[0].device))
        if means is None or not decision["commit"]:
            self.fails = True
            return False
        for bucket in means:
            bucket.put_back()
        self._statistics = statistics
        self.averaged, self.changes, self.flags = True, bool(decision["change"]), flags.tolist()
        return True
