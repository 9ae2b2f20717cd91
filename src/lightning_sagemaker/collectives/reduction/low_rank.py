# SPDX-License-Identifier: Apache-2.0
"""PowerSGD with torch's hook, with its collectives in the same order on every rank over gloo too.

torch's hook starts a bucket's second all-reduce when the first has completed, in gloo's threads: with several
buckets in flight, ranks may start them in different orders, and sum tensors of different buckets. Here a bucket
starts when the previous one has completed, in a thread during the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from lightning_sagemaker.collectives.reduction.pipeline import ThreadPipeline
from lightning_sagemaker.collectives.reduction.topology import Groups

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, StateDict
    from lightning_sagemaker.collectives.reduction.bucket import Bucket, BucketReducer


_SETTLES = 2
"""Steps after which DDP's buckets no longer change."""
_EPSILON = 1e-8
"""Added to the norm of a column: gradients of unused parameters are zeros, which torch's default turns into NaN."""


class LowRankReducer:
    """Reduces buckets as low-rank matrices, with error feedback; exactly in the first steps.

    Args:
        exact: Reduces the buckets of the steps before ``start``.
        groups: Process groups.
        device: Device of the gradients.
        rank: Rank of the matrices that are sent.
        start: Number of optimizer steps before compression starts.

    """

    def __init__(self, exact: BucketReducer, groups: Groups, device: torch.device, rank: int, start: int) -> None:
        self._exact, self._device, self._start = exact, device, start
        self._group = groups.get("all", "low rank")
        self._state = PowerSGDState(
            self._group,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=max(start, _SETTLES),
            orthogonalization_epsilon=_EPSILON,
        )
        self._pipeline = ThreadPipeline([], partial(_compress, self._state))
        self._parameters: dict[int, list[Tensor]] = {}
        self._restored: dict[int, Tensor] = {}
        self._steps, self._counts = 0, True

    def reduce_bucket(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """Start to replace a bucket's gradients by an approximation of their mean over all processes."""
        state = self._state
        if not self._counts or state.iter < state.start_powerSGD_iter or self._steps < _SETTLES:
            if self._counts:
                self._steps += bucket.is_last()
                state.maybe_increase_iter(bucket)  # type: ignore[no-untyped-call]
            done: torch.futures.Future[Tensor] = self._exact.reduce_bucket(bucket)
            return done
        number, is_new = bucket.index(), bucket.index() not in state.p_memory_dict
        if is_new:
            self._parameters[number] = list(bucket.parameters())
            self._restore(number)
        if self._device.type == "cuda":
            return _powersgd(state, bucket)
        future = self._pipeline.run(bucket.buffer(), [bucket])
        if is_new:
            future.wait()  # torch seeds the global generator for it and restores it: nothing else may draw meanwhile
        return future

    def begin(self) -> None:
        """Compress from the next step on."""
        self._steps, self._state.iter = _SETTLES, self._state.start_powerSGD_iter

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Context for DDP's bucket rebuild, whose zero gradients are not part of a training step."""
        self._counts = False
        yield
        self._counts, self._steps = True, _SETTLES

    def state_dict(self, parameters: Sequence[Tensor]) -> StateDict:
        """The step and the errors, for a checkpoint. Collective over all ranks, between two steps.

        PowerSGD is linear in the mean over the processes, so each may continue with the mean of all errors as well as with
        its own.

        Args:
            parameters: All trained parameters, in an order that is the same in each run.

        """
        errors: dict[int, Tensor] = {}
        for number, error in sorted(self._state.error_dict.items()):
            mean = error / dist.get_world_size(self._group)
            dist.all_reduce(mean, group=self._group)
            owners = self._parameters[number]
            parts = torch.split(mean, [owner.numel() for owner in owners])
            errors |= {id(owner): part.cpu().clone() for owner, part in zip(owners, parts, strict=True)}
        errors = self._restored | errors
        return {"steps": self._state.iter, "errors": [errors.get(id(parameter)) for parameter in parameters]}

    def load_state_dict(self, found: Checkpoint, parameters: Sequence[Tensor]) -> bool:
        """Restore the errors of a checkpoint, once DDP's buckets are final.

        Args:
            found: The result of :meth:`state_dict`.
            parameters: All trained parameters, in the same order.

        Returns:
            Whether the errors are of a model with these parameters.

        """
        sizes = [None if error is None else error.numel() for error in found["errors"]]
        if len(sizes) != len(parameters) or any(
            size not in (None, parameter.numel()) for size, parameter in zip(sizes, parameters, strict=True)
        ):
            return False
        self._state.iter = int(found["steps"])
        self._restored = {
            id(parameter): error
            for parameter, error in zip(parameters, found["errors"], strict=True)
            if error is not None
        }
        return True

    def _restore(self, number: int) -> None:
        owners = self._parameters[number]
        if any(id(owner) in self._restored for owner in owners):
            parts = [self._restored.pop(id(owner), torch.zeros(owner.numel())) for owner in owners]
            self._state.error_dict[number] = torch.cat(parts).to(self._device, owners[0].dtype)


def _compress(state: PowerSGDState, bucket: Bucket, _: object) -> None:
    """Not a method: the thread that runs it must not keep the pipeline alive, as it ends when that is freed."""
    _powersgd(state, bucket).wait()


def _powersgd(state: PowerSGDState, bucket: Bucket) -> torch.futures.Future[Tensor]:
    return powerSGD_hook(state, cast(dist.GradBucket, bucket))
