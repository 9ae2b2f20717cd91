# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.state_mod``: the state of the process, set up by :func:`init`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from lightning_sagemaker.collectives import clean_exit
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.job.source import is_true
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.sharding import check_shardable

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


_USED_HERE = ("prescaled_batch", "sdp_gradient_clipping")
"""Keys that the strategy ignores, with a note; this API uses them, so the note is not printed."""


@dataclass(frozen=True)
class Config:
    """``smp.state.cfg``: the part of the configuration that scripts and transformers read."""

    degrees: ParallelDegrees
    fp16: bool = False
    bf16: bool = False
    prescaled_batch: bool = False
    shard_optimizer_state: bool = False
    sdp_gradient_clipping: float = 1.0

    def __getattr__(self, name: str) -> int:
        values = {
            "pipeline_parallel_degree": self.degrees.pipeline,
            "partitions": self.degrees.pipeline,
            "tensor_parallel_degree": self.degrees.tensor,
            "microbatches": self.degrees.microbatches,
            "sharded_data_parallel_degree": self.degrees.shard,
        }
        if name not in values:
            raise AttributeError(f"smp.state.cfg has no {name!r}")
        return values[name]


@dataclass
class ModuleManager:
    """``smp.state.module_manager``.

    Attributes:
        translate_functions: Pairs that translate names of weights; none, as names are those of the user's model.
        assigned: Module -> the partition that the script has assigned it to.
        shared: Module -> whether the script enables tensor parallelism for it.

    """

    translate_functions: list[object] = field(default_factory=list)
    assigned: WeakKeyDictionary[nn.Module, int] = field(default_factory=WeakKeyDictionary)
    shared: WeakKeyDictionary[nn.Module, bool] = field(default_factory=WeakKeyDictionary)


class PatchManager:
    """``smp.state.patch_manager``: scripts that run copies of partitioned modules ask it for methods as they were."""

    @staticmethod
    def get_original_method(name: str, owner: type) -> object:
        """The method of the class ``owner``: this package replaces none of a class."""
        return getattr(owner, name)


class State:
    """``smp.state``."""

    def __init__(self) -> None:
        self.cfg: Config | None = None
        self.module_manager = ModuleManager()
        self.patch_manager = PatchManager()
        self.model: Any = None
        self.optimizer: Any = None
        self.is_tracing = False
        self.param_index_to_name_tp_group: dict[object, object] = {}
        self.param_name_to_index_tp_group: dict[object, object] = {}
        self._groups: ParallelGroups | None = None
        self.objects: ProcessGroup | None = None
        """Process group of all ranks on the CPU, for sending objects."""

    @property
    def initialized(self) -> bool:
        """Whether :func:`init` was called."""
        return self._groups is not None

    @property
    def groups(self) -> ParallelGroups:
        """Ranks and process groups.

        Raises:
            RuntimeError: Before :func:`init`.

        """
        if self._groups is None:
            raise RuntimeError("smdistributed.modelparallel is not initialized. HINT: call smp.init() first.")
        return self._groups

    @property
    def device(self) -> torch.device:
        """Device of this process: the GPU of its local rank, or the CPU."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.job.local_rank or 0)

    @property
    def job(self) -> SageMakerJob:
        """The job as read from the environment."""
        return SageMakerJob.from_environment()

    def initialize(self, config: Mapping[str, object] | None) -> None:
        """Read the configuration and create the process groups. Calling it again does nothing.

        Args:
            config: The script's configuration; overridden by the job's, as AWS documents.

        Raises:
            ParallelConfigError: If the configuration is invalid; raised before any process group is created.

        """
        if self.initialized:
            return
        job = self.job
        parameters = {**(config or {}), **job.model_parallel_parameters}
        degrees, notes = ParallelDegrees.from_parameters(parameters)
        degrees.replicas(job.world_size or 1)
        _check_sharding(degrees, job.world_size or 1)
        clean_exit.register()
        if not dist.is_initialized():
            init_process_group(job)
            clean_exit.register(dist.get_backend())  # scripts do not destroy what they have not made
        self._groups = ParallelGroups.build(degrees)
        self.objects = dist.new_group(backend="gloo")
        self.cfg = Config(
            degrees,
            prescaled_batch=is_true(parameters.get("prescaled_batch", False)),
            sdp_gradient_clipping=float(str(parameters.get("sdp_gradient_clipping", 1.0))),
        )
        if dist.get_rank() == 0:
            for note in notes:
                if not any(name in note for name in _USED_HERE):
                    print(note)

    def take(self, model: nn.Module) -> None:
        """Use a model in :func:`step`, the optimizer and checkpoints from here on; a process has one."""
        if self.model is not None:
            self.model.stop_clipping()
            if dist.get_rank() == 0:
                print(
                    "A second DistributedModel takes the place of the first: smp.step, the optimizer and checkpoints use it"
                    " from now on. HINT: to train two models, make both parts of one module."
                )
        self.model = model


def init_process_group(job: SageMakerJob) -> None:
    """Join the job's processes by the launcher's variables; without a launcher, a group of one process."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if job.global_rank is None or job.world_size in (None, 1):
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = job.known_address()
    os.environ.setdefault("MASTER_PORT", str(job.main_port))
    dist.init_process_group(backend, rank=job.global_rank, world_size=job.world_size)


def _check_sharding(degrees: ParallelDegrees, world_size: int) -> None:
    if degrees.shard == 1:
        return
    if degrees.shard == 0 or degrees.tensor > 1 or degrees.pipeline > 1:
        raise ParallelConfigError(
            f"mp_parameters has a shard degree of {degrees.shard} with tensor_parallel_degree={degrees.tensor} and"
            f" partitions={degrees.pipeline}, which this stand-in for AWS's library does not support. HINT: set"
            " sharded_data_parallel_degree alone, or train with Lightning's Trainer(strategy='smp')."
        )
    degrees.shards(world_size)
    check_shardable("cuda" if torch.cuda.is_available() else "cpu")


state = State()
