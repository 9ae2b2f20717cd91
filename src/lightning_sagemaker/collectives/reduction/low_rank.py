# SPDX-License-Identifier: Apache-2.0
"""PowerSGD: torch's hook, whose collectives come in one order on every rank over gloo too.

torch's hook begins the second of its all-reduces of a bucket when the first is done, in gloo's own threads: with
several buckets under way, ranks may begin them in different orders, and add up what does not belong together. Here a
bucket begins when the one before it is done, in a thread during the backward pass.
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
    from lightning_sagemaker._types import Checkpoint
    from lightning_sagemaker.collectives.reduction.bucket import Bucket, BucketReducer

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict


_SETTLES = 2
"""Steps after which DDP has the buckets that it keeps."""
_EPSILON = 1e-8
"""Added to the norm of a column: gradients of what no process has used are zeros, which torch's default makes NaN."""


class LowRankReducer:
    """Buckets in low rank, with the error of each step added to the next; exact until then.

    Args:
        exact: Reduces a vector, in the steps before.
        groups: Process groups.
        device: Where the gradients are.
        rank: Rank of the matrices that are sent.
        start: Optimizer steps before which nothing is compressed.

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
        """Begin to replace a bucket's gradients by their mean over all processes, about."""
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
            future.wait()  # torch seeds the process's random numbers for it, and gives them back: nothing else may draw
        return future

    def begin(self) -> None:
        """Compress from the next step on."""
        self._steps, self._state.iter = _SETTLES, self._state.start_powerSGD_iter

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """While DDP makes the buckets that it keeps, from gradients of no step."""
        self._counts = False
        yield
        self._counts, self._steps = True, _SETTLES

    def state_dict(self, parameters: Sequence[Tensor]) -> StateDict:
        """Plain values for a checkpoint. Collective over all ranks, between two steps.

        The method is linear in the processes' mean, so each may continue with the mean of all errors as well as with
        its own.

        Args:
            parameters: All that are trained, in one order.

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
            found: From :meth:`state_dict`.
            parameters: All that are trained, in the same order.

        Returns:
            Whether they are of a model with these parameters.

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
    """Not a method: the thread that runs it must not keep the pipeline alive, whose end is its own."""
    _powersgd(state, bucket).wait()


def _powersgd(state: PowerSGDState, bucket: Bucket) -> torch.futures.Future[Tensor]:
    return powerSGD_hook(state, cast(dist.GradBucket, bucket))
