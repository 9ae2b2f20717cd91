# SPDX-License-Identifier: Apache-2.0
"""Averages gradients during the backward pass as in DDP: each bucket as soon as its gradients are ready.

All ranks reduce the buckets in the same order, whichever becomes ready first, so that a step has the same collectives
everywhere. A gradient is expected as often as it was ready in the previous step: more than once if a reused layer is
recomputed by reentrant checkpointing, and not at all if it never was, such as that of a pooler which the loss ignores.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf

import torch
from torch import Tensor, nn

from lightning_sagemaker.recovery.gradients import NONE, Bucket, buckets_of
from lightning_sagemaker.recovery.replicas import Replicas

_log = logging.getLogger(__name__)


class OverlappedMeans:
    """Averages the gradients of each step.

    Args:
        shards: Number of shards of a step; each rank has the sum over its shards.
        replicas: Replicas of the model, if each is sharded across several ranks. Their means are reduced after the backward
            pass, in which FSDP communicates.

    Attributes:
        is_under_way: Whether the last backward pass of a step runs or is about to run.

    """

    def __init__(self, shards: int, replicas: Replicas | None = None) -> None:
        self._replicas = replicas
        self._shards = shards if replicas is None else shards // replicas.size  # within a replica FSDP reduces
        self.is_under_way = False
        self._is_clean, self._overlaps = True, replicas is None
        self._known: list[int] = []
        self._buckets: list[Bucket] = []
        self._bucket_of: list[int] = []
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._adopted = NONE
        self._came: list[int] = []
        self._expected = self._came
        self._left: list[float] = []
        self._next = 0
        self._is_late = False
        self._seen: list[bool] = []

    def begin(self, parameters: Sequence[nn.Parameter], adopted: Mapping[nn.Parameter, Tensor]) -> None:
        """Reduce in the next backward pass, which is the step's last.

        Args:
            parameters: Parameters that may have gradients, in the same order on all ranks.
            adopted: Gradients of adopted shards, summed, to be added.

        """
        if not self._is_clean or [*map(id, parameters)] != self._known:
            self._plan(parameters)
        self._adopted, self._expected, self._came = adopted, self._came, [0] * len(parameters)
        self._left = self._awaited()
        for bucket in self._buckets:
            bucket.begin()
        self._next, self._is_late, self._is_clean, self.is_under_way = 0, False, False, True

    def wait(self) -> bool:
        """Reduce the remaining buckets, and wait for all. Collective.

        Returns:
            False if a gradient became ready after its bucket was reduced: repeat the step; later ones do not overlap.

        Raises:
            RuntimeError: If the group has lost a rank.

        """
        self.is_under_way = False
        with torch.no_grad():
            for bucket in self._buckets[self._next :]:
                bucket.start(self._adopted)
            for bucket in self._buckets:
                bucket.wait()
        self._is_clean = True
        if self._is_late:
            self._overlaps = False
            _log.warning(
                "Gradients were ready more often than in the previous step: they are now reduced after the backward pass."
            )
        return not self._is_late

    def abandon(self) -> None:
        """Drop the step in flight, as it has failed or the quorum changes."""
        self.is_under_way = False
        if self._replicas is not None:  # the new quorum has other groups
            self.release()

    def put_back(self) -> None:
        """Replace each gradient by its mean."""
        for bucket in self._buckets:
            bucket.put_back()
        self._adopted = NONE

    def release(self) -> None:
        """Remove the hooks and the references to parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._buckets, self._bucket_of, self._known = [], [], [], []

    def _plan(self, parameters: Sequence[nn.Parameter]) -> None:
        """Create new buckets, without any counts of gradients."""
        self.release()
        self._known = [*map(id, parameters)]
        group = None if self._replicas is None else self._replicas.across
        self._buckets = buckets_of(parameters, self._shards, group)
        place = {id(one): number for number, bucket in enumerate(self._buckets) for one in bucket.parameters}
        self._bucket_of = [place[one] for one in self._known]
        self._hooks = [
            one.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-untyped-call]
            for index, one in enumerate(parameters)
        ]
        self._came = [0] * len(parameters)
        self._seen = [False] * len(parameters)

    def _awaited(self) -> list[float]:
        """Number of gradients that each bucket waits for; infinity to wait until the end of the pass."""
        expected = self._expected
        seen = self._seen = [known or count > 0 for known, count in zip(self._seen, expected, strict=True)]
        left = [0.0 if self._overlaps and any(seen) else inf] * len(self._buckets)
        for number, count, known in zip(self._bucket_of, expected, seen, strict=True):
            if known:
                left[number] += count or inf
        return left

    def _arrived(self, index: int, _: nn.Parameter) -> None:
        """Hook: a parameter's gradient is ready, within a backward pass."""
        if not self.is_under_way:
            return
        number = self._bucket_of[index]
        if self._buckets[number].is_started:
            self._is_late = True
            return
        self._came[index] += 1
        self._left[number] += -1 if self._came[index] <= self._expected[index] else inf  # more may follow
        while self._next < len(self._buckets) and not self._left[self._next]:
            with torch.no_grad():
                self._buckets[self._next].start(self._adopted)
            self._next += 1
