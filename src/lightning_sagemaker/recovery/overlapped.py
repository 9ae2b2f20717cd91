# SPDX-License-Identifier: Apache-2.0
"""The mean of gradients, reduced during the backward pass as in DDP: each bucket as soon as its gradients are there.

All ranks reduce the buckets in one order, whatever becomes ready first on each, so that a step has the same collectives
everywhere. A gradient is awaited as often as it came in the step before: more than once where a layer that is used again is
recomputed by reentrant checkpointing, and not at all while it has never come, as those of a pooler that the loss leaves out.
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
    """Means of the gradients of one step after the other.

    Args:
        shards: Number of shards of a step; each rank has the sum over its own.
        replicas: Replicas of the model, if each is sharded across several ranks. Their means are reduced after the backward
            pass, in which FSDP communicates.

    Attributes:
        is_under_way: Whether the last backward pass of a step is, or is about to be.

    """

    def __init__(self, shards: int, replicas: Replicas | None = None) -> None:
        self._replicas = replicas
        self._shards = shards if replicas is None else shards // replicas.size  # within one it is FSDP that reduces
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
        """The backward pass that follows is the step's last.

        Args:
            parameters: Those that may have gradients, in the same order on all ranks.
            adopted: Sums of gradients of shards that this rank has adopted, to be added.

        """
        if not self._is_clean or [*map(id, parameters)] != self._known:
            self._plan(parameters)
        self._adopted, self._expected, self._came = adopted, self._came, [0] * len(parameters)
        self._left = self._awaited()
        for bucket in self._buckets:
            bucket.begin()
        self._next, self._is_late, self._is_clean, self.is_under_way = 0, False, False, True

    def wait(self) -> bool:
        """Reduce what is left, and wait for all. Collective.

        Returns:
            False if a gradient came after its bucket was reduced: the step is to be repeated, and no later one overlaps.

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
        """The step has failed, or the next one is another quorum's."""
        self.is_under_way = False
        if self._replicas is not None:  # its groups are others
            self.release()

    def put_back(self) -> None:
        """Replace each gradient by its mean."""
        for bucket in self._buckets:
            bucket.put_back()
        self._adopted = NONE

    def release(self) -> None:
        """Forget the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._buckets, self._bucket_of, self._known = [], [], [], []

    def _plan(self, parameters: Sequence[nn.Parameter]) -> None:
        """New buckets: no gradient has been seen."""
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
        """How many gradients each bucket waits for; infinity if until the end of the pass."""
        expected = self._expected
        seen = self._seen = [known or count > 0 for known, count in zip(self._seen, expected, strict=True)]
        left = [0.0 if self._overlaps and any(seen) else inf] * len(self._buckets)
        for number, count, known in zip(self._bucket_of, expected, seen, strict=True):
            if known:
                left[number] += count or inf
        return left

    def _arrived(self, index: int, _: nn.Parameter) -> None:
        """Called within a backward pass."""
        if not self.is_under_way:
            return
        number = self._bucket_of[index]
        if self._buckets[number].is_started:
            self._is_late = True
            return
        self._came[index] += 1
        self._left[number] += -1 if self._came[index] <= self._expected[index] else inf  # more may come
        while self._next < len(self._buckets) and not self._left[self._next]:
            with torch.no_grad():
                self._buckets[self._next].start(self._adopted)
            self._next += 1
