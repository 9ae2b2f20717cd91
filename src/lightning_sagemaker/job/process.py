# SPDX-License-Identifier: Apache-2.0
"""What started this process, and its ranks: torchrun, mpirun, AWS's smddprun, or nothing.

Only the process's own variables are used here. The requested distribution may differ: an image without SageMaker's
toolkit, or a host outside the distribution's groups, starts one plain process in any case.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from lightning_sagemaker.job import by_hand
from lightning_sagemaker.job.source import Source
from lightning_sagemaker.job.types import Launcher, SageMakerJobError

SPAWNED_BY_LIGHTNING = "LIGHTNING_SAGEMAKER_SPAWNED"
"""Set for the processes that Lightning starts, so that their ``LOCAL_RANK`` is not mistaken for a manually set one."""

TORCHELASTIC_PORT = 12910
"""``MASTER_PORT`` if torchrun's variables lack it, as in Lightning's ``TorchElasticEnvironment`` (2.6)."""

_RUN_ID = "TORCHELASTIC_RUN_ID"

_MPI = "OMPI_COMM_WORLD_"

_LSF = ("LSB_JOBID", "LSB_DJOB_RANKFILE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_SIZE")

_LEFT_BEHIND = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that Lightning sets in the process that launches others, and does not remove."""

_left_behind: dict[str, str | None] = {}
_starts = False


@dataclass(frozen=True)
class Ranks:
    """Rank of this process among those that its launcher started.

    Attributes:
        launcher: The launcher, never ``Launcher.NONE``.
        global_rank: From 0, below ``world_size``.
        world_size: Number of processes.
        local_rank: From 0, below ``local_world_size``.
        local_world_size: Number of processes on this host.
        node_rank: Index of this host among those of the launch.

    """

    launcher: Launcher
    global_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int

    @property
    def num_nodes(self) -> int:
        """Number of hosts that the launcher used."""
        return self.world_size // self.local_world_size


def begin_start() -> None:
    """Record that Lightning is about to launch processes from this one."""
    global _starts
    os.environ[SPAWNED_BY_LIGHTNING], _starts = "1", True


def end_start() -> None:
    """Withdraw that, if it was set, so that child processes of other origin do not misread the variables."""
    global _starts
    if _starts:
        _starts = False
        os.environ.pop(SPAWNED_BY_LIGHTNING, None)
        _left_behind.update({name: os.environ.get(name) for name in _LEFT_BEHIND})


def _is_lightnings(source: Source) -> bool:
    """Whether ``LOCAL_RANK`` was set by Lightning, for this process or in it."""
    if source.text(SPAWNED_BY_LIGHTNING) is not None:
        return True
    return bool(_left_behind) and all(source.text(name) == _left_behind.get(name) for name in _LEFT_BEHIND)


def _is_scheduled(source: Source) -> bool:
    """Whether Slurm or LSF started this process, as Lightning detects them.

    The scheduler then sets ranks and address; ``RANK`` and ``LOCAL_RANK``, which batch scripts export for other libraries,
    are not read.
    """
    if source.text("SLURM_NTASKS") is not None and source.text("SLURM_JOB_NAME") not in ("bash", "interactive"):
        return True
    return all(source.text(name) is not None for name in _LSF)


def read_ranks(source: Source, num_hosts: int | None) -> Ranks | None:
    """The ranks that a launcher gave this process; None without a launcher.

    Args:
        source: The variables.
        num_hosts: Hosts in the container's files; None outside a container.

    Raises:
        SageMakerJobError: If the launcher's variables are incomplete or contradict each other, or ``LOCAL_RANK`` is
            a leftover.

    """
    if source.text(_RUN_ID) is not None:
        return _read_torchrun(source, num_hosts)
    if source.text(f"{_MPI}SIZE") is not None or source.text(f"{_MPI}RANK") is not None:
        return _read_mpi(source)
    if source.text("LOCAL_RANK") is None or _is_lightnings(source) or (num_hosts is None and _is_scheduled(source)):
        return None
    if source.text("RANK") is not None and source.text("WORLD_SIZE") is not None:
        ranks = _read_torchrun(source, num_hosts)
        if ranks is not None:
            source.notes.append(
                "RANK, LOCAL_RANK and WORLD_SIZE are set, but not by torchrun or mpirun; treating them as torchrun's."
            )
        return ranks
    if num_hosts is None:
        by_hand.read(source)
        return None
    if source.text("NODE_RANK") is not None and source.text("WORLD_SIZE") is not None and source.text("RANK") is None:
        return None  # started by Lightning
    raise SageMakerJobError(
        f"LOCAL_RANK={source.text('LOCAL_RANK')} is set, but no launcher started this process: there is no {_RUN_ID}, no"
        f" {_MPI}RANK, no RANK with WORLD_SIZE. HINT: unset LOCAL_RANK, or start the script with torchrun or mpirun."
    )


def _read_torchrun(source: Source, num_hosts: int | None) -> Ranks | None:
    """The ranks; None if the number of processes per host is unknown, so that the Trainer's devices must set it."""
    rank, world = _pair(source, "RANK", "WORLD_SIZE")
    local_rank = _required(source, "LOCAL_RANK", 0)
    local_world = source.integer("LOCAL_WORLD_SIZE", 1) or _guess_local_world_size(source, world, num_hosts)
    if local_world is None:
        by_hand.read(source)
        return None
    _check_local(local_rank, local_world, world, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    node_rank, nodes = source.integer("GROUP_RANK"), source.integer("GROUP_WORLD_SIZE", 1)
    if nodes is not None and nodes * local_world != world:
        raise SageMakerJobError(
            f"WORLD_SIZE={world} contradicts GROUP_WORLD_SIZE={nodes} hosts with LOCAL_WORLD_SIZE={local_world}"
            " process(es) each. HINT: start every host with the same --nnodes and --nproc_per_node."
        )
    if node_rank is not None and node_rank * local_world >= world:
        raise SageMakerJobError(
            f"GROUP_RANK={node_rank} is out of range: WORLD_SIZE={world} with LOCAL_WORLD_SIZE={local_world} is"
            f" {world // local_world} host(s). HINT: GROUP_RANK is the host's index, from 0."
        )
    _check_rendezvous(source, rank, world, num_nodes=world // local_world)
    if node_rank is None:
        node_rank = rank // local_world
    return Ranks(Launcher.TORCHRUN, rank, world, local_rank, local_world, node_rank)


def _check_rendezvous(source: Source, rank: int, world: int, num_nodes: int) -> None:
    """Raise if ranks could not find each other; Lightning has defaults for a port, and for the address of a single host."""
    has_default = {"MASTER_ADDR": num_nodes == 1, "MASTER_PORT": world == 1 or source.text(_RUN_ID) is not None}
    for name, default in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", TORCHELASTIC_PORT)):
        if source.text(name) is not None:
            continue
        if not has_default[name]:
            raise SageMakerJobError(
                f"RANK={rank} and WORLD_SIZE={world} are set, but {name} is not, so the processes cannot find each"
                f" other. HINT: start the script with torchrun, or set {name} to that of the process with RANK=0."
            )
        if name == "MASTER_ADDR" or world > 1:  # one process finds a free port
            source.notes.append(f"{name} is not set; using {default}, as Lightning's DDP does.")


def _guess_local_world_size(source: Source, world: int, num_hosts: int | None) -> int | None:
    """Processes per host if not set: an equal share per host; None if the hosts are unknown."""
    hosts = num_hosts or source.integer("GROUP_WORLD_SIZE", 1)
    if world == 1:
        return 1
    if hosts is None:
        return None
    if world % hosts == 0:
        return world // hosts
    raise SageMakerJobError(
        f"WORLD_SIZE={world} is set without LOCAL_WORLD_SIZE, which is not divisible by the number of hosts, {hosts}. "
        "HINT: set LOCAL_WORLD_SIZE to the number of processes on each host, as torchrun does."
    )


def _read_mpi(source: Source) -> Ranks:
    rank, world = _pair(source, f"{_MPI}RANK", f"{_MPI}SIZE")
    local_rank = _required(source, f"{_MPI}LOCAL_RANK", 0)
    local_world = _required(source, f"{_MPI}LOCAL_SIZE", 1)
    _check_local(local_rank, local_world, world, f"{_MPI}LOCAL_RANK", f"{_MPI}LOCAL_SIZE", f"{_MPI}SIZE")
    launcher = Launcher.MPI
    if source.text("RANK") is not None and _smddp_was_launched(source):
        launcher = Launcher.SMDDPRUN
        if source.integer("RANK") != rank:
            raise SageMakerJobError(
                f"RANK={source.text('RANK')} contradicts {_MPI}RANK={rank}. HINT: do not set RANK in the job's"
                " environment; smddprun sets it on each process."
            )
    nodes = world // local_world
    if rank == local_rank * nodes + rank % nodes and rank != rank // local_world * local_world + local_rank:
        source.notes.append("mpirun assigned ranks round-robin to the hosts (--map-by node); node ranks follow.")
        return Ranks(launcher, rank, world, local_rank, local_world, rank % nodes)
    if rank % local_world != local_rank:
        raise SageMakerJobError(
            f"{_MPI}RANK={rank} with {_MPI}LOCAL_RANK={local_rank} and {_MPI}LOCAL_SIZE={local_world} does not identify"
            " a host. HINT: run mpirun with --map-by slot and the same number of processes on each host."
        )
    return Ranks(launcher, rank, world, local_rank, local_world, rank // local_world)


def _smddp_was_launched(source: Source) -> bool:
    return any(
        source.text(f"SMDATAPARALLEL_{name}") is not None
        for name in ("USE_SINGLENODE", "USE_HOMOGENEOUS", "LOCAL_RANK")
    )


def _pair(source: Source, rank_name: str, size_name: str) -> tuple[int, int]:
    size = _required(source, size_name, 1)
    rank = _required(source, rank_name, 0)
    if rank >= size:
        raise SageMakerJobError(
            f"{rank_name}={rank} is out of range for {size_name}={size}. HINT: ranks go from 0 to {size - 1}."
        )
    return rank, size


def _required(source: Source, name: str, minimum: int) -> int:
    value = source.integer(name, minimum)
    if value is None:
        raise SageMakerJobError(
            f"{name} is not set, although other variables of the launcher are. HINT: start the script with torchrun or"
            " mpirun, and pass their variables on."
        )
    return value


def _check_local(
    local_rank: int, local_world: int, world: int, rank_name: str, size_name: str, world_name: str
) -> None:
    if local_rank >= local_world:
        raise SageMakerJobError(
            f"{rank_name}={local_rank} is out of range for {size_name}={local_world}."
            f" HINT: local ranks go from 0 to {local_world - 1} on each host."
        )
    if world % local_world:
        raise SageMakerJobError(
            f"{world_name}={world} contradicts {size_name}={local_world}: every host must have the same number of"
            " processes. HINT: give each host the same number of slots."
        )
