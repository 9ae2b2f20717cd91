# SPDX-License-Identifier: Apache-2.0
"""Base of the Trainer's and Fabric's strategies: hosts, devices and ranks come from the job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lightning_sagemaker._lightning import (
    ClusterEnvironment,
    LightningEnvironment,
    MPIEnvironment,
    TorchElasticEnvironment,
    rank_zero_info,
)
from lightning_sagemaker.collectives import forks, restarts
from lightning_sagemaker.data.sharing import prepare_sharing
from lightning_sagemaker.environment import SageMakerEnvironment
from lightning_sagemaker.job import Launcher, SageMakerJob, SageMakerJobError
from lightning_sagemaker.job.devices import driver_gpus
from lightning_sagemaker.job.settings import refuse_devices, refuse_num_nodes
from lightning_sagemaker.recovery.supervised import is_supervised
from lightning_sagemaker.recovery.together import meet
from lightning_sagemaker.strategies import starting
from lightning_sagemaker.strategies.host import Host
from lightning_sagemaker.strategies.keywords import check_keywords

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict


_REPLACED = (LightningEnvironment, MPIEnvironment, TorchElasticEnvironment)
"""Environments of Lightning that are replaced in a job. SLURM, LSF, Kubeflow and a user's own class are kept."""


class JobAware(Host):
    """Mixin before a ``DDPStrategy``: reconciles the Trainer's settings with the job.

    The Trainer sets up a strategy after its construction, with defaults that are wrong in a job: one node, one process
    on a CPU host, the environment that it detected. So the job's values are applied in the setters, never in
    ``__init__``, where they would silently override what the user passed to the Trainer.

    Args:
        job: The job; read from the process's environment if None.

    Raises:
        SageMakerJobError: If the environment contradicts itself, or the Trainer's arguments contradict the job.
        TypeError: If an argument is unknown.

    """

    recovers = False
    """Whether the other ranks continue when one is lost."""

    def __init__(self, *args: object, job: SageMakerJob | None = None, **kwargs: Any) -> None:
        check_keywords(kwargs, type(self))
        self.job = SageMakerJob.from_environment() if job is None else job
        self._environment: ClusterEnvironment | None = None
        self._requested_num_nodes = 1
        self._constructing = True
        super().__init__(*args, **kwargs)
        self._constructing = False

    @property
    def cluster_environment(self) -> ClusterEnvironment | None:
        """The environment in use: :class:`SageMakerEnvironment` in a job or under a launcher, unless the user set one."""
        return self._environment

    @cluster_environment.setter
    def cluster_environment(self, environment: ClusterEnvironment | None) -> None:
        if not self._constructing and self._job_knows_more and _is_detected(environment):
            environment = SageMakerEnvironment(self.job)
        self._environment = environment

    @property
    def _job_knows_more(self) -> bool:
        """Whether there is a job or a launcher; on a bare machine Lightning's own environment is sufficient."""
        return self.job.in_container or self.job.launcher is not Launcher.NONE

    @property
    def _follows_job(self) -> bool:
        return isinstance(self._environment, SageMakerEnvironment)

    # Lightning's ``num_nodes`` property and Fabric's connector both store into ``_num_nodes``.
    @property
    def _num_nodes(self) -> int:
        return self.job.num_nodes if self._follows_job else self._requested_num_nodes

    @_num_nodes.setter
    def _num_nodes(self, num_nodes: int) -> None:
        if self._follows_job and num_nodes not in (1, self.job.num_nodes):  # 1 is the default: not a choice
            raise refuse_num_nodes(self.job, num_nodes)
        self._requested_num_nodes = num_nodes

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """One device per process on this host."""
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device] | None) -> None:
        launched = self.job.local_world_size if self._follows_job else None
        if devices and launched:
            if getattr(self, "_process_group_backend", None) != "gloo":
                _check_gpus(devices, launched)
            devices = _fit_devices(devices, launched)
        self._parallel_devices = devices

    @property
    def distributed_sampler_kwargs(self) -> StateDict:
        """Arguments of the ``DistributedSampler``: the environment's world size, whatever ``num_nodes`` says."""
        if self._environment is None:  # not attached to a Trainer yet
            return super().distributed_sampler_kwargs
        return {"num_replicas": self._environment.world_size(), "rank": self._environment.global_rank()}

    def process_dataloader(self, dataloader: Any) -> Any:
        """Called with each loader before it is used.

        Raises:
            MisconfigurationException: If the loader's workers could not send batches on this host.

        """
        prepare_sharing(dataloader)
        return super().process_dataloader(dataloader)

    def _configure_launcher(self) -> None:
        self._launcher: Any = None
        if starting.choose(self):
            super()._configure_launcher()
            starting.unshare(self)

    def setup_environment(self) -> None:
        """Called first in each process; creates the process group.

        Raises:
            SageMakerJobError: If manually set variables contradict the Trainer's arguments.

        """
        assert self._environment is not None
        starting.check(self)
        forks.guard()
        if is_supervised() and not self.recovers and not dist.is_initialized():
            self._meet(self._environment)
        with restarts.own_store(self._environment.global_rank(), self._environment.world_size()) as port:
            if port is not None and isinstance(self._environment, SageMakerEnvironment):
                self._environment.use_port(port)
            super().setup_environment()

    def _meet(self, environment: ClusterEnvironment) -> None:
        """Wait for the other ranks of a supervised job; they are restarted together when one of them is lost."""
        address, port = meet(environment.global_rank(), environment.world_size()).address
        if isinstance(environment, SageMakerEnvironment):
            environment.use_place(address, port)


def _is_detected(environment: ClusterEnvironment | None) -> bool:
    """Whether Lightning picked this environment itself, as opposed to a user's own or hand-patched one."""
    if environment is None or type(environment) not in _REPLACED:
        return False
    patched = [name for name in vars(environment) if callable(getattr(type(environment), name, None))]
    return not patched


def _check_gpus(devices: list[torch.device], launched: int) -> None:
    """Raise if there are more processes than GPUs: nccl refuses a shared GPU, and the others would wait for that rank."""
    found = driver_gpus()
    in_parts = "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if devices[0].type == "cuda" and 0 < found < launched and not in_parts:
        raise SageMakerJobError(
            f"The launcher started {launched} processes on this host, which has {found} GPU(s), and nccl refuses a GPU that"
            f" two processes share. HINT: start {found}, or try the job with accelerator='cpu'."
        )


def _fit_devices(devices: list[torch.device], launched: int) -> list[torch.device]:
    """The devices of the ``launched`` processes of this host, from those that the Trainer chose.

    ``devices="auto"`` means one process on a CPU host and all visible GPUs elsewhere; launchers may have started a
    different number, and may show each process only its own GPU.
    """
    found = len(devices)
    if found == launched:
        return devices
    if found == 1:
        if devices[0].type == "cpu":
            rank_zero_info(f"Using devices={launched}: the launcher started {launched} processes on this host.")
        return devices * launched
    if devices[0].type == "cuda" and found == torch.cuda.device_count() and launched < found:
        rank_zero_info(f"Using {launched} of the {found} GPUs: the launcher started {launched} processes on this host.")
        return devices[:launched]
    raise refuse_devices(launched, found)
