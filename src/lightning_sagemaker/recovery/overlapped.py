# SPDX-License-Identifier: Apache-2.0
"""The mean of gradients, reduced during the backward pass as in DDP: each bucket as soon as its gradients are there.

All ranks reduce the buckets in one order, whatever becomes ready first on each, so that a step has the same collectives
everywhere. A gradient is awaited as often as it came in the step before: more than once where a layer that is used again is
recomputed by reentrant checkpointing, and not at all while it has never come, as those of a pooler that the loss leaves out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

import torch
from torch import Tensor, nn

from lightning_sagemaker.recovery.gradients import NONE, Bucket, buckets_of

_log = logging.getLogger(__name__)


class OverlappedMeans:
    """Means of the gradients of one step after the other.

    Args:
        shards: Number of shards of a step; each rank has the sum over its own.

    Attributes:
        is_under_way: Whether the last backward pass of a step is, or is about to be.

    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self.is_under_way = False
        self._is_clean = self._overlaps = True
        self._known: list[int] = []
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[nn.Parameter, int] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._adopted = NONE
        self._came: Counter[nn.Parameter] = Counter()
        self._expected = self._came
        self._seen: set[nn.Parameter] = set()
        self._left: list[float] = []
        self._next = 0
        self._is_late = False

    def begin(self, parameters: Sequence[nn.Parameter], adopted: Mapping[nn.Parameter, Tensor]) -> None:
        """The backward pass that follows is the step's last.

        Args:
            parameters: Those that may have gradients, in the same order on all ranks.
            adopted: Sums of gradients of shards that this rank has adopted, to be added.

        """
        if not self._is_clean or [*map(id, parameters)] != self._known:
            self._plan(parameters)
        self._adopted, self._expected, self._came = adopted, self._came, Counter()
        self._seen.update(self._expected)
        self._left = [self._awaited(bucket) for bucket in self._buckets]
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
                "Gradients came more often than in the step before: they are reduced after the backward pass now."
            )
        return not self._is_late

    def abandon(self) -> None:
        """The step has failed."""
        self.is_under_way = False

    def put_back(self) -> None:
        """Replace each gradient by its mean."""
        for bucket in self._buckets:
            bucket.put_back()
        self._adopted = NONE

    def release(self) -> None:
        """Forget the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._buckets, self._bucket_of, self._known = [], [], {}, []

    def _plan(self, parameters: Sequence[nn.Parameter]) -> None:
        """New buckets: what a group that has failed may still write to is not used again."""
        self.release()
        self._known = [*map(id, parameters)]
        self._buckets = buckets_of(parameters, self._shards)
        self._bucket_of = {one: number for number, bucket in enumerate(self._buckets) for one in bucket.parameters}
        self._hooks = [one.register_post_accumulate_grad_hook(self._arrived) for one in parameters]  # type: ignore[no-untyped-call]
        self._came, self._seen = Counter(), set()

    def _awaited(self, bucket: Bucket) -> float:
        """How many gradients it waits for; infinity if until the end of the pass."""
        known = [one for one in bucket.parameters if one in self._seen]
        counts = [self._expected[parameter] for parameter in known]
        return sum(counts) if self._overlaps and self._seen and all(counts) else inf

    def _arrived(self, parameter: nn.Parameter) -> None:
        """Called within a backward pass."""
        if not self.is_under_way:
            return
        number = self._bucket_of[parameter]
        bucket = self._buckets[number]
        if bucket.is_started:
            self._is_late = True
            return
        self._came[parameter] += 1
        with torch.no_grad():
            if self._came[parameter] <= self._expected[parameter]:
                self._left[number] -= 1
            else:
                self._left[number] = inf  # more may come
            while self._next < len(self._buckets) and not self._left[self._next]:
                self._buckets[self._next].start(self._adopted)
                self._next += 1
