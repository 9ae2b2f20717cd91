# SPDX-License-Identifier: Apache-2.0
"""The cluster environment: Lightning's view of a :class:`~lightning_sagemaker.job.SageMakerJob`."""

from __future__ import annotations

import logging
import os

from typing_extensions import override

from lightning_sagemaker._lightning import (
    ClusterEnvironment,
    MPIEnvironment,
    find_free_network_port,
    rank_zero_info,
    rank_zero_only,
)
from lightning_sagemaker.job import Launcher, SageMakerJob, SageMakerJobError
from lightning_sagemaker.job.process import begin_start
from lightning_sagemaker.job.settings import refuse_devices, refuse_num_nodes

log = logging.getLogger(__name__)


class SageMakerEnvironment(ClusterEnvironment):
    """Ranks, hosts and rendezvous of a SageMaker job, of any torchrun or mpirun launch, or of a plain machine.

    With a launcher (torchrun, mpirun, smddprun) every process already exists. Without one, Lightning starts the
    processes on each host, and they connect to the job's first host.

    Args:
        job: The job; read from the process's environment when None.

    Raises:
        SageMakerJobError: If the environment contradicts itself.

    """

    def __init__(self, job: SageMakerJob | None = None) -> None:
        super().__init__()
        self.job = SageMakerJob.from_environment() if job is None else job
        self._global_rank = self.job.global_rank or 0
        self._world_size = self.job.world_size or 1
        self._main_address: str | None = None
        self._main_port: int | None = None

    @property
    def launched(self) -> bool:
        """Whether a launcher started this process, as opposed to Lightning or the user."""
        return self.job.launcher is not Launcher.NONE

    @property
    @override
    def creates_processes_externally(self) -> bool:
        return self.launched or "LOCAL_RANK" in os.environ

    @property
    @override
    def main_address(self) -> str:
        if not self.job.main_address and self._main_address is None:
            self._ask_mpi()
        return self._main_address or self.job.main_address

    @property
    @override
    def main_port(self) -> int:
        if not self.job.main_address and self._main_address is None:
            self._ask_mpi()
        if self._main_port is None:
            self._main_port = self._choose_port()
        return self._main_port

    def _ask_mpi(self) -> None:
        """Where rank zero is, and a free port there: known to MPI itself. All ranks take part.

        Raises:
            SageMakerJobError: If mpi4py, or its MPI library, is not installed or is not the one that mpirun belongs to.

        """
        if not MPIEnvironment.detect():
            self.job.known_address()
        mpi = MPIEnvironment()
        self._main_address, self._main_port = mpi.main_address, mpi.main_port
        rank_zero_info(
            f"MASTER_ADDR is not set. mpirun says that rank zero is on {self._main_address}; port {self._main_port} is free."
        )

    def use_port(self, port: int) -> None:
        """Use ``port`` for the rendezvous, whatever the launcher set."""
        self._main_port = port

    def use_place(self, address: str, port: int) -> None:
        """Use another host and port for the rendezvous."""
        self._main_address, self._main_port = address, port

    def _choose_port(self) -> int:
        if (self.launched and self.job.world_size != 1) or self.job.num_nodes > 1 or "MASTER_PORT" in os.environ:
            return self.job.main_port
        return int(find_free_network_port())  # one host, nobody else needs to know it beforehand

    @staticmethod
    @override
    def detect() -> bool:
        """Whether this process runs inside a SageMaker training job, real or simulated."""
        try:
            return SageMakerJob.from_environment().in_container
        except SageMakerJobError:
            return True  # only a job's variables can contradict each other

    @override
    def world_size(self) -> int:
        return self._world_size

    @override
    def set_world_size(self, size: int) -> None:
        if self.launched:
            log.debug("SageMakerEnvironment.set_world_size was called, but the launcher has set the size. Ignored.")
        else:
            self._world_size = size

    @override
    def global_rank(self) -> int:
        return self._global_rank

    @override
    def set_global_rank(self, rank: int) -> None:
        if self.launched:
            log.debug("SageMakerEnvironment.set_global_rank was called, but the launcher has set the rank. Ignored.")
        else:
            self._global_rank = rank
        rank_zero_only.rank = self._global_rank

    @override
    def local_rank(self) -> int:
        if self.job.local_rank is not None:
            return self.job.local_rank
        return int(os.environ.get("LOCAL_RANK", 0))  # set by Lightning for the processes it starts

    @override
    def node_rank(self) -> int:
        return self.job.node_rank

    @override
    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare the Trainer's settings with the job.

        Args:
            num_devices: Processes on this host.
            num_nodes: Hosts.

        Raises:
            SageMakerJobError: If they differ.

        """
        job = self.job
        if num_nodes != job.num_nodes:
            raise refuse_num_nodes(job, num_nodes)
        if self.launched and num_devices != job.local_world_size:
            raise refuse_devices(job.local_world_size, num_devices)
        if not self.creates_processes_externally:
            begin_start()

    @override
    def teardown(self) -> None:
        if not self.launched:
            os.environ.pop("WORLD_SIZE", None)  # set by Lightning's launcher; stale once the processes are done
