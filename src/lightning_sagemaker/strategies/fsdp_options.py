# SPDX-License-Identifier: Apache-2.0
"""Arguments of the Trainer's and Fabric's ``"smddp_fsdp"``, and accumulation without communication."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightning_sagemaker._compat.sharding import FSDPModule, MixedPrecisionPolicy
from lightning_sagemaker._lightning import MisconfigurationException
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
from lightning_sagemaker.parallel.sharding import ShardOptions
from lightning_sagemaker.strategies.host import Host
from lightning_sagemaker.strategies.keywords import check_keywords
from lightning_sagemaker.strategies.smp_parameters import degrees_of

if TYPE_CHECKING:
    from lightning_sagemaker._types import FabricPrecision, Precision


PRECISIONS = ("32-true", "bf16-mixed", "bf16-true", "16-true")
"""Precisions of Lightning's ModelParallelStrategy, which checks them only if the strategy is passed as an object."""


class TakesShardOptions(Host):
    """Mixin before :class:`~lightning_sagemaker.strategies.smp_parameters.ParallelLayout`.

    Args:
        hybrid_shard_degree: Number of processes that the parameters of a replica are sharded across; 0 for all. Default:
            from the job's ``mp_parameters``, else 0. Overrides ``parameters`` and ``degrees``.
        auto_wrap_policy: Classes of the modules whose parameters are gathered and freed together. Default: the repeated
            blocks of the model. This and the next three have no effect if the user's ``configure_model`` has called
            ``fully_shard``.
        mp_policy: Precision of gathers and reductions. Default: with ``precision="bf16-mixed"`` parameters are gathered
            as bfloat16 and gradients reduced as float32, else both in their own precision.
        cpu_offload: Keep shards, their gradients and the optimizer's states in CPU memory.
        reshard_after_forward: Whether parameters are freed between the forward and the backward pass. Default: True for
            blocks, False for the rest.
        **kwargs: Arguments of :class:`~lightning_sagemaker.strategies.smp_parameters.ParallelLayout`.

    Raises:
        ParallelConfigError: If pipeline stages are requested.

    """

    degrees: ParallelDegrees

    def __init__(
        self,
        *args: object,
        hybrid_shard_degree: int | None = None,
        auto_wrap_policy: Collection[type[nn.Module]] | None = None,
        mp_policy: MixedPrecisionPolicy | None = None,
        cpu_offload: bool = False,
        reshard_after_forward: bool | None = None,
        parameters: Mapping[str, object] | None = None,
        degrees: ParallelDegrees | None = None,
        job: SageMakerJob | None = None,
        **kwargs: Any,
    ) -> None:
        check_keywords(kwargs, type(self))
        job = SageMakerJob.from_environment() if job is None else job
        if degrees is None and not (job.model_parallel_parameters if parameters is None else parameters):
            degrees = ParallelDegrees(shard=0)
        if hybrid_shard_degree is not None:
            found, _ = degrees_of(job, parameters, degrees)
            degrees = dataclasses.replace(found, shard=_checked(hybrid_shard_degree))
        self.shard_options = ShardOptions(auto_wrap_policy, mp_policy, cpu_offload, reshard_after_forward)
        super().__init__(*args, parameters=parameters, degrees=degrees, job=job, **kwargs)
        if self.degrees.pipeline > 1:
            raise ParallelConfigError(
                f"strategy='smddp_fsdp' was given partitions={self.degrees.pipeline}, but it shards parameters and has no"
                " pipeline. HINT: use strategy='smp', or a shard degree instead of partitions."
            )

    def options_for(self, precision: Precision | FabricPrecision) -> ShardOptions:
        """The options for the precision of the Trainer or Fabric.

        Args:
            precision: Lightning's precision plugin.

        Raises:
            MisconfigurationException: If parameters cannot be sharded with it.

        """
        name = str(precision.precision)
        if name not in PRECISIONS:
            raise MisconfigurationException(
                f"precision={name!r} was set with strategy='smddp_fsdp'. HINT: choose one of {', '.join(PRECISIONS)}."
            )
        if self.shard_options.mp_policy is not None or name != "bf16-mixed":
            return self.shard_options
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        return dataclasses.replace(self.shard_options, mp_policy=policy)


def _checked(degree: object) -> int:
    if isinstance(degree, bool) or not isinstance(degree, int) or degree < 0:
        raise ParallelConfigError(
            f"hybrid_shard_degree={degree!r} was set. HINT: set a number of processes, or 0 for all."
        )
    return degree


@contextlib.contextmanager
def without_sync(module: nn.Module) -> Iterator[None]:
    """Context in which backward passes accumulate unsharded gradients; the next one outside reduces them."""
    units = [unit for unit in module.modules() if isinstance(unit, FSDPModule)]
    for unit in units:
        unit.set_requires_gradient_sync(False, recurse=False)
    try:
        yield
    finally:
        for unit in units:
            unit.set_requires_gradient_sync(True, recurse=False)


def move_buffers(module: nn.Module, device: torch.device) -> None:
    """Move unsharded tensors, such as buffers and metrics, to the compute device; shards stay in CPU memory."""
    from torchmetrics import Metric

    for part in module.modules():
        if isinstance(part, Metric):
            part.to(device)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.to(device)
