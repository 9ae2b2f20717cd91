# SPDX-License-Identifier: Apache-2.0
"""The optimizer steps of a custom loop with Fabric: gradients are summed over a rank's shards, then averaged over ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import nn

from lightning_sagemaker.recovery import gradients, shards
from lightning_sagemaker.recovery.buffers import FIRST, SharedBuffers
from lightning_sagemaker.recovery.member import RecoveryError
from lightning_sagemaker.recovery.regroup import is_loss

if TYPE_CHECKING:
    from lightning_sagemaker._types import FabricPrecision
    from lightning_sagemaker.recovery.fabric_loop import InJobLoop
    from lightning_sagemaker.recovery.job_rank import JobRank
    from lightning_sagemaker.recovery.wire import Reply

Gradients = dict[nn.Parameter, torch.Tensor]


class InJobStrategy(Protocol):
    """What a loop uses of the strategy, :class:`~lightning_sagemaker.strategies.fabric_in_job.FabricInJobDDPStrategy`."""

    rank: JobRank | None
    loop: InJobLoop | None
    modules: list[nn.Module]
    precision: FabricPrecision

    @property
    def shards(self) -> int:
        """Shards of the job."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained."""

    @property
    def root_device(self) -> torch.device:
        """Device of this process."""

    def form(self, reply: Reply) -> None:
        """Create the group of a quorum."""


class FabricSteps:
    """The gradients of the current step, of each of this rank's shards.

    Args:
        rank: This process.
        world_size: Shards of the job.
        buffers: Buffers of the modules that are trained.

    Attributes:
        adopts: The lost rank's shard that the current pass through the loop's body is for; None if it is the own one.
        fails: Whether a rank was lost before the step was committed, so that it is repeated.
        changes: Whether a replacement waits for the end of this step.
        stepped: Whether the optimizer has stepped in this pass.
        averaged: Whether the gradients are the mean over all shards.
        flags: Messages between ranks, of the last time.

    """

    def __init__(self, rank: JobRank, world_size: int, buffers: SharedBuffers) -> None:
        self._rank, self._world_size, self._buffers = rank, world_size, buffers
        self._is_first = True
        self._of_shards: dict[int, Gradients] = {}
        self.flags: list[float] = []
        self.adopts: int | None = None
        self.fails = self.changes = self.stepped = self.averaged = False

    def begin_quorum(self) -> None:
        """The ranks have changed: what was computed for the step in flight is dropped."""
        self._of_shards, self.fails, self.changes = {}, False, False

    @contextmanager
    def one_pass(self, adopts: int | None, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """A pass through the loop's body.

        Args:
            adopts: The shard of a lost rank; its passes do not change the gradients of the own one.
            parameters: Those that are trained.

        """
        self.adopts, self.stepped = adopts, False
        if adopts is None:
            yield
            return
        own, self._is_first = _taken(parameters), True
        # Averaged gradients are all shards' alike: this one's are added to them, unless the body sets them to zero.
        _put(parameters, self._of_shards.get(adopts, {parameter: one.clone() for parameter, one in own.items()}))
        try:
            yield
        finally:
            _put(parameters, own)
            self.adopts = None

    @contextmanager
    def backward(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """A backward pass.

        Args:
            parameters: Those that are trained.

        Raises:
            RecoveryError: If the optimizer has stepped in this pass: that could not be repeated.

        """
        if self.stepped:
            raise RecoveryError(
                "fabric.backward was called after optimizer.step within one batch, with recovery='in_job': what was"
                " stepped could not be repeated after a loss. HINT: set recovery='restart'."
            )
        if self.adopts is None:
            self.averaged = False
            yield
            return
        if not self._is_first:
            _put(parameters, self._of_shards[self.adopts])
        yield
        self._of_shards[self.adopts], self._is_first = (
            _taken(parameters),
            False,
        )  # safe from what the body does with them

    def average(self, parameters: Sequence[nn.Parameter], step: int, flags: torch.Tensor) -> bool:
        """Average the gradients over all shards. Collective, in the pass of the own batch.

        Args:
            parameters: Those that are trained.
            step: The last committed step.
            flags: Messages of this rank; :attr:`flags` is then the maximum over ranks.

        Returns:
            False if the step is not to be made: in another rank's pass, or if a rank was lost.

        """
        if self.fails or self.adopts is not None:
            return False
        if self.averaged:
            return True
        for found in self._of_shards.values():
            for parameter, gradient in found.items():
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._of_shards = {}
        means, ok, statistics = None, True, []
        try:
            work = dist.all_reduce(flags, dist.ReduceOp.MAX, async_op=True)
            means = gradients.means(parameters, self._world_size)
            statistics = self._buffers.of_first(shards.rank_of(FIRST, self._rank.order, self._world_size))
            assert work is not None
            work.wait()
        except RuntimeError as error:
            if not is_loss(error, self._rank, step):
                raise
            ok = False
        decision = self._rank.member.commit(step + 1, ok=ok and self._rank.is_whole(parameters[0].device))
        if means is None or not decision["commit"]:
            self.fails = True
            return False
        for bucket in means:
            bucket.put_back()
        self._buffers.put(statistics)
        self.averaged, self.changes, self.flags = True, bool(decision["change"]), flags.tolist()
        return True


def _taken(parameters: Sequence[nn.Parameter]) -> Gradients:
    """The gradients, which are then those of no parameter."""
    found = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
    _put(parameters, {})
    return found


def _put(parameters: Sequence[nn.Parameter], found: Gradients) -> None:
    for parameter in parameters:
        parameter.grad = found.get(parameter)
