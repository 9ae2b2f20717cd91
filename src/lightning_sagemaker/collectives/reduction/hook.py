# SPDX-License-Identifier: Apache-2.0
"""DDP communication hooks that reduce gradients according to a plan, over gloo and nccl."""
# Without `from __future__ import annotations`: DDP compares the annotations of a hook with the types themselves.

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker._lightning import MisconfigurationException
from lightning_sagemaker.collectives.native import untraced
from lightning_sagemaker.collectives.reduction.pipeline import StreamPipeline, ThreadPipeline
from lightning_sagemaker.collectives.reduction.plan import FLAT, Plan
from lightning_sagemaker.collectives.reduction.stages import Gather, ScatterSum
from lightning_sagemaker.collectives.reduction.topology import Groups

if TYPE_CHECKING:
    from lightning_sagemaker.collectives.reduction.bucket import Bucket, BucketReducer


class Reducer:
    """Averages or sums vectors over all processes, according to a plan.

    Creating one is collective over all ranks, and so is reducing.

    Args:
        plan: Plan without PowerSGD.
        groups: Process groups.
        device: Device of the vectors.
        divisor: Divisor of the sum; the number of processes if None.

    """

    def __init__(self, plan: Plan, groups: Groups, device: torch.device, divisor: int | None = None) -> None:
        self.plan = plan
        self._world = groups.topology.world_size
        divisor = self._world if divisor is None else divisor
        between: list[Callable[[Tensor], Tensor]] = []
        if plan.algorithm == FLAT:
            first = ScatterSum(groups.get("all", "sum"), plan.wire, divisor)
            last = Gather(groups.get("all", "gather"), plan.wire)
        else:
            first = ScatterSum(groups.get("within", "sum"), None, divisor)
            across = groups.get("across", "sum"), groups.get("across", "gather")
            between = [ScatterSum(across[0], plan.wire), Gather(across[1], plan.wire)]
            last = Gather(groups.get("within", "gather"))
        stages: list[Callable[[Tensor], Tensor]] = [partial(_padded, self._world, first), *between]
        make = StreamPipeline if device.type == "cuda" else ThreadPipeline
        self._pipeline = make(stages, last.into)

    def reduce(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        """Start to replace ``buffer`` by the mean over all processes.

        Args:
            buffer: One dimension, of any floating-point type; contiguous.

        Returns:
            A future of the buffer.

        """
        future: torch.futures.Future[Tensor] = self._pipeline.run(buffer, self._pieces(buffer))
        return future

    def reduce_bucket(self, bucket: "Bucket") -> torch.futures.Future[Tensor]:
        """Start to replace a bucket's gradients by their mean over all processes."""
        return self.reduce(bucket.buffer())

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Context in which reductions are not part of a training step; does nothing, as a sum has no state."""
        yield

    def _pieces(self, buffer: Tensor) -> list[Tensor]:
        """Parts of about the same size; all but the last are multiples of the number of processes."""
        count = max(1, round(buffer.nbytes / self.plan.piece_bytes))
        size = max(1, -(-buffer.numel() // (count * self._world))) * self._world
        return list(torch.split(buffer, size))


def _padded(world: int, first: ScatterSum, piece: Tensor) -> Tensor:
    """Not a method: the threads that run it must not keep the pipeline alive, as they end when it is freed."""
    missing = -piece.numel() % world
    return first(torch.nn.functional.pad(piece, (0, missing)) if missing else piece)


@untraced
def reduce_bucket(state: "BucketReducer", bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook; the state is a :class:`Reducer` or a ``LowRankReducer``."""
    done: torch.futures.Future[torch.Tensor] = state.reduce_bucket(bucket)
    return done


def reduced_parameters(ddp: DistributedDataParallel) -> tuple[list[Tensor], list[bool]]:
    """The parameters whose gradients a wrapper reduces, and whether each has sparse gradients."""
    require(ddp, "_build_params_for_reducer")
    parameters, sparse = ddp._build_params_for_reducer()  # type: ignore[no-untyped-call]
    return parameters, sparse


def attach(ddp: DistributedDataParallel, reducer: "BucketReducer") -> None:
    """Make a wrapper reduce its gradients with ``reducer``.

    Raises:
        MisconfigurationException: If some gradients are sparse.

    """
    if any(reduced_parameters(ddp)[1]):
        raise MisconfigurationException(
            "gradient_reduction or gradient_compression was set, but an embedding of the model has sparse=True, whose"
            " gradients only DDP's own all-reduce supports. HINT: leave out both options, or sparse=True."
        )
    ddp.register_comm_hook(reducer, reduce_bucket)


def own_reducer(ddp: DistributedDataParallel) -> "BucketReducer | None":
    """The reducer that :func:`attach` set on a wrapper; None if it has another hook, or none."""
    require(ddp, "_comm_hooks")
    hooks: list[tuple[object, BucketReducer]] = ddp._comm_hooks  # type: ignore[assignment]
    return next((state for hook, state in hooks if hook is reduce_bucket), None)


@contextmanager
def uncounted(ddp: DistributedDataParallel) -> Iterator[None]:
    """Context for DDP's bucket rebuild, whose zero gradients are not part of a training step."""
    reducer = own_reducer(ddp)
    with contextlib.nullcontext() if reducer is None else reducer.uncounted():
        yield
