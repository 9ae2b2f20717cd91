# SPDX-License-Identifier: Apache-2.0
"""The device mesh of the strategies that shard parameters: from SageMaker's degrees or Lightning's sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
from lightning_sagemaker.parallel.sharding import ShardOptions, check_shardable, make_mesh, shard_module
from lightning_sagemaker.strategies.smp_parameters import ParallelLayout

_AUTO = "auto"


class ShardedLayout(ParallelLayout):
    """Base of the Trainer's and Fabric's strategies: creates the device mesh, and parallelizes the module on it.

    Args:
        data_parallel_size: Number of replicas, which must match the number of processes. Default: as many as there are.
        tensor_parallel_size: Number of processes that matrices are sharded across, like the tensor parallel degree of
            ``parameters`` or ``degrees``, which are then optional. Default: that degree.
        parameters: SageMaker's ``mp_parameters``. Default: those of the job.
        degrees: The same as an object; overrides ``parameters``.
        job: The job; read from the process's environment if None.
        **kwargs: Arguments of :class:`~lightning_sagemaker.strategies.smp_parameters.ParallelLayout`, and of Lightning's
            strategy.

    Raises:
        ParallelConfigError: If the sizes contradict the degrees.

    """

    degrees: ParallelDegrees
    activation_checkpointing: bool
    world_size: int
    root_device: torch.device
    _data_parallel_size: Literal["auto"] | int

    def __init__(
        self,
        *,
        data_parallel_size: int | str = _AUTO,
        tensor_parallel_size: int | str = _AUTO,
        parameters: Mapping[str, object] | None = None,
        degrees: ParallelDegrees | None = None,
        job: SageMakerJob | None = None,
        **kwargs: Any,
    ) -> None:
        job = SageMakerJob.from_environment() if job is None else job
        has_sizes = (data_parallel_size, tensor_parallel_size) != (_AUTO, _AUTO)
        if has_sizes and degrees is None and not (job.model_parallel_parameters if parameters is None else parameters):
            degrees = ParallelDegrees(shard=0)
        super().__init__(parameters=parameters, degrees=degrees, job=job, **kwargs)
        self.degrees = _with_tensor_size(self.degrees, tensor_parallel_size)
        self._asked_replicas = data_parallel_size

    def _setup_distributed(self) -> None:
        check_shardable(self.root_device.type)  # these two raise before any process group is created
        self._data_parallel_size = _check_replicas(self.degrees, self.world_size, self._asked_replicas)
        super()._setup_distributed()

    def mesh(self) -> DeviceMesh:
        """Create the device mesh; see :func:`~lightning_sagemaker.parallel.sharding.make_mesh`."""
        return make_mesh(self.degrees, self.world_size, self.root_device.type)

    def sharding_options(self) -> ShardOptions:
        """How parameters are sharded."""
        return ShardOptions()

    def shard(self, module: nn.Module, mesh: DeviceMesh, methods: Iterable[str] = ()) -> None:
        """Parallelize and shard ``module`` in place, with the weights of the first process. Collective over all processes.

        Args:
            module: The complete module.
            mesh: The device mesh from :meth:`mesh`.
            methods: Names of the module's methods other than ``forward`` that are called from outside.

        """
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                if isinstance(tensor, DTensor) or tensor.is_meta:  # sharded by the user, or materialized later
                    continue
                found = tensor.data.to(self.root_device)  # one at a time, as all of them may not fit there
                dist.broadcast(found, 0)
                tensor.data.copy_(found)
        is_one_unit = shard_module(
            module,
            mesh,
            methods,
            recompute=self.activation_checkpointing,
            offload=self.degrees.offload_activations,
            options=self.sharding_options(),
        )
        if is_one_unit:
            rank_zero_info(
                f"{type(module).__name__} has no repeated blocks, so its parameters are gathered all at once. HINT:"
                " with strategy='smddp_fsdp', auto_wrap_policy={Block} names the classes to gather separately."
            )


def _with_tensor_size(degrees: ParallelDegrees, size: int | str) -> ParallelDegrees:
    """The degrees with Lightning's ``tensor_parallel_size``."""
    if size in (_AUTO, degrees.tensor):
        return degrees
    if degrees.tensor != 1 or not isinstance(size, int) or size < 1:
        raise ParallelConfigError(
            f"tensor_parallel_size={size!r} was set with a tensor parallel degree of {degrees.tensor}."
            " HINT: set one of them, to a number of processes."
        )
    return dataclasses.replace(degrees, tensor=size)


def _check_replicas(degrees: ParallelDegrees, world_size: int, requested: int | str) -> int:
    """Check Lightning's ``data_parallel_size``, and return the number of replicas."""
    replicas = degrees.replicas(world_size)
    if requested not in (_AUTO, replicas):
        raise ParallelConfigError(
            f"data_parallel_size={requested!r} was set, but {world_size} processes with a tensor parallel degree of"
            f" {degrees.tensor} are {replicas} replicas. HINT: leave it out, or set data_parallel_size={replicas}."
        )
    return replicas
