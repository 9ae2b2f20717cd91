# SPDX-License-Identifier: Apache-2.0
""":class:`SageMakerJob`: everything that determines how this process trains, read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zlib import crc32

from lightning_sagemaker.job import hosts as _hosts
from lightning_sagemaker.job.devices import count_cpus, count_gpus
from lightning_sagemaker.job.hosts import Hosts
from lightning_sagemaker.job.intent import read_channels, read_intent
from lightning_sagemaker.job.once import Once
from lightning_sagemaker.job.process import TORCHELASTIC_PORT, Ranks, read_ranks
from lightning_sagemaker.job.source import Source, is_true
from lightning_sagemaker.job.types import Distribution, InstanceGroup, Launcher, SageMakerJobError

DEFAULT_ROOT = "/opt/ml"
"""Base folder of every training container."""

MODEL, OUTPUT, CHECKPOINTS = "model", "output/data", "checkpoints"
"""Folders below it."""

DEFAULT_PORT = 7777
"""Port of the main process in both generations of containers."""

SMDDP_PORT_OFFSET = 2
"""MASTER_PORT minus the port of SMDDP's server, if MASTER_PORT is not set (AWS's SMDDP documentation)."""

_LOOPBACK = "127.0.0.1"

SMDDP_VARIABLES = (
    "SMDATAPARALLEL_OPTIMIZE_SDP",
    "SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES",
    "SMDDP_AG_SORT_BUFFER_SIZE_BYTES",
)
"""Variables of SMDDP's two modes; see ``smddp_modes.py``."""


@dataclass(frozen=True, kw_only=True)
class SageMakerJob:
    """What a process can know about its job, on SageMaker or anywhere else.

    Attributes:
        name: Training job name; None outside a job.
        in_container: Whether this is a SageMaker training job, real or simulated.
        simulated: Whether ``lightning-sagemaker local`` simulates the job.
        hosts: Hosts that train together, in node-rank order; the first is the main one.
        current_host: Name of this host.
        num_nodes: ``len(hosts)``.
        node_rank: Index of ``current_host`` in ``hosts``.
        num_gpus: GPUs of this host.
        num_cpus: CPU cores of this host.
        instance_type: Instance type of this host, such as ``ml.p4d.24xlarge``.
        instance_group: Instance group of this host.
        instance_groups: All groups of the cluster.
        network_interface: Network interface between the hosts, such as ``eth0``.
        channels: Input channel -> its folder.
        model_dir: Its content becomes the job's model artifact.
        output_dir: For everything else that is kept after the job.
        checkpoint_dir: Synced with S3 while the job runs, if the job is configured for it.
        hyperparameters: The user's hyperparameters, decoded.
        distribution: The requested distribution.
        model_parallel_parameters: ``mp_parameters``; empty when there are none.
        launcher: What started this process.
        global_rank: Set by the launcher; None without a launcher, as the next three.
        local_rank: Set by the launcher, below ``local_world_size``.
        world_size: Set by the launcher: number of processes.
        local_world_size: Set by the launcher: number of processes on this host.
        by_hand: The launcher variables that are set, if the set is incomplete.
        main_address: Address of the process with rank 0; empty if unknown, under an mpirun on several hosts without
            ``MASTER_ADDR``.
        main_port: Port of the process with rank 0.
        smddp_version: Version of AWS's SMDDP where it is installed; None elsewhere (this package's shim does not
            count).
        smddp_variables: Variables that select SMDDP's collectives and their sizes.
        notes: One sentence for each difference between the requested and the actual configuration.
        sources: Field -> its source.

    """

    name: str | None = None
    in_container: bool = False
    simulated: bool = False
    hosts: tuple[str, ...] = (_hosts.LOCAL_HOST,)
    current_host: str = _hosts.LOCAL_HOST
    num_nodes: int = 1
    node_rank: int = 0
    num_gpus: int = 0
    num_cpus: int = 1
    instance_type: str | None = None
    instance_group: str | None = None
    instance_groups: tuple[InstanceGroup, ...] = ()
    network_interface: str | None = None
    channels: Mapping[str, Path] = field(default_factory=dict)
    model_dir: Path = Path(DEFAULT_ROOT, MODEL)
    output_dir: Path = Path(DEFAULT_ROOT, OUTPUT)
    checkpoint_dir: Path = Path(DEFAULT_ROOT, CHECKPOINTS)
    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    distribution: Distribution = Distribution.NONE
    model_parallel_parameters: Mapping[str, object] = field(default_factory=dict)
    launcher: Launcher = Launcher.NONE
    global_rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    by_hand: Mapping[str, int] = field(default_factory=dict)
    main_address: str = _LOOPBACK
    main_port: int = DEFAULT_PORT
    smddp_version: str | None = None
    smddp_variables: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(
        cls, env: Mapping[str, str] | None = None, root: str | os.PathLike[str] | None = None
    ) -> SageMakerJob:
        """The job that this process belongs to; a laptop and any torchrun or mpirun launch are jobs as well.

        It is read at the first call, and again if a variable that it depends on has changed, or with arguments.

        Ranks and launcher come from the process's own variables, host facts from the container's files and then
        ``SM_*``, the requested distribution from ``SM_FRAMEWORK_PARAMS``, ``SM_DISTRIBUTED_CONFIG`` and the
        hyperparameters. Where they differ, the process's variables win, and ``notes`` says so.

        Args:
            env: Variables, which then are always read. Default: ``os.environ``.
            root: Base folder of the container; ``SAGEMAKER_BASE_DIR``, else ``/opt/ml``, when None.

        Raises:
            SageMakerJobError: If the environment is malformed or contradicts itself.

        """
        if env is None and root is None:
            return _of_this_process()
        return _read(os.environ if env is None else env, root)

    @property
    def failure_file(self) -> Path:
        """Where SageMaker reads the reason of a failure."""
        return self.checkpoint_dir.parent / "output" / "failure"

    def known_address(self) -> str:
        """``main_address``, if it is known.

        Raises:
            SageMakerJobError: If it is unknown.

        """
        if not self.main_address:
            raise SageMakerJobError(
                f"mpirun started processes on {self.num_nodes} hosts, but MASTER_ADDR is not set, so they cannot find each"
                " other. HINT: run mpirun with -x MASTER_ADDR=NAME-OF-THE-FIRST-HOST -x MASTER_PORT=29500. (Trainer and"
                " Fabric ask MPI itself where mpi4py is installed.)"
            )
        return self.main_address

    @classmethod
    def local(cls) -> SageMakerJob:
        """A job of this machine only, whatever its variables are: one host, no launcher."""
        source = Source({}, Path(DEFAULT_ROOT))
        gpus, cpus = count_gpus(source), count_cpus(source)
        return cls(num_gpus=gpus, num_cpus=cpus, smddp_version=_smddp_version())


def source_of(env: Mapping[str, str], root: str | os.PathLike[str] | None = None) -> Source:
    """What a job is read from; see :meth:`SageMakerJob.from_environment`."""
    return Source(env, Path(root or env.get("SAGEMAKER_BASE_DIR") or DEFAULT_ROOT))


def _read(env: Mapping[str, str], root: str | os.PathLike[str] | None = None) -> SageMakerJob:
    source = source_of(env, root)
    return _read_container(source) if _hosts.in_container(source) else _read_anywhere(source)


_of_this_process = Once(_read)


def _read_container(source: Source) -> SageMakerJob:
    hosts = _hosts.read_hosts(source)
    ranks = read_ranks(source, len(hosts.names))
    if ranks is None:
        _hosts.check_known(source, hosts)
    else:
        hosts = _hosts.fit_to_launch(source, hosts, ranks)
    simulated = is_true(source.text("LIGHTNING_SAGEMAKER_SIMULATED") or False)
    job = _assemble(source, hosts, ranks, in_container=True, simulated=simulated)
    if not simulated and job.num_gpus and job.local_world_size is not None and job.local_world_size > job.num_gpus:
        raise SageMakerJobError(
            f"{job.launcher.value} started {job.local_world_size} processes on this host, which has SM_NUM_GPUS="
            f"{job.num_gpus} GPUs. HINT: start at most one process for each GPU (processes_per_host, --nproc_per_node)."
        )
    return job


def _read_anywhere(source: Source) -> SageMakerJob:
    ranks = read_ranks(source, None)
    return _assemble(source, _hosts.synthetic_hosts(ranks), ranks, in_container=False, simulated=False)


def _assemble(
    source: Source, hosts: Hosts, ranks: Ranks | None, *, in_container: bool, simulated: bool
) -> SageMakerJob:
    intent = read_intent(source)
    _note_missing_launcher(source, intent.distribution, ranks)
    address, port = _rendezvous(source, hosts, ranks, in_container=in_container, simulated=simulated)
    launcher = Launcher.NONE if ranks is None else ranks.launcher
    source.origins["launcher"] = "no launcher's variables" if ranks is None else f"{launcher.value}'s variables"
    if ranks is not None:
        of_launcher = ("node_rank", "global_rank", "local_rank", "world_size", "local_world_size")
        source.origins |= dict.fromkeys(of_launcher, source.origins["launcher"])
    return SageMakerJob(
        name=_name(source),
        in_container=in_container,
        simulated=simulated,
        hosts=hosts.names,
        current_host=hosts.current,
        num_nodes=len(hosts.names),
        node_rank=hosts.names.index(hosts.current),
        num_gpus=count_gpus(source),
        num_cpus=count_cpus(source),
        instance_type=hosts.instance_type,
        instance_group=hosts.group,
        instance_groups=hosts.groups,
        network_interface=hosts.network_interface,
        channels=read_channels(source),
        model_dir=_folder(source, "model_dir", "SM_MODEL_DIR", MODEL),
        output_dir=_folder(source, "output_dir", "SM_OUTPUT_DATA_DIR", OUTPUT),
        checkpoint_dir=source.found("checkpoint_dir", "the container's folder", source.root / CHECKPOINTS),
        hyperparameters=intent.hyperparameters,
        distribution=intent.distribution,
        model_parallel_parameters=intent.model_parallel_parameters,
        launcher=launcher,
        global_rank=None if ranks is None else ranks.global_rank,
        local_rank=None if ranks is None else ranks.local_rank,
        world_size=None if ranks is None else ranks.world_size,
        local_world_size=None if ranks is None else ranks.local_world_size,
        by_hand=source.by_hand,
        main_address=address,
        main_port=port,
        smddp_version=_smddp_version(),
        smddp_variables={name: value for name in SMDDP_VARIABLES if (value := source.text(name)) is not None},
        notes=tuple(source.notes),
        sources=dict(source.origins),
    )


def _folder(source: Source, field: str, variable: str, below_root: str) -> Path:
    text = source.text(variable)
    if text is not None:
        return source.found(field, variable, Path(text))
    return source.found(field, "the container's folder", source.root / below_root)


def _name(source: Source) -> str | None:
    for variable in ("TRAINING_JOB_NAME", "SAGEMAKER_JOB_NAME"):
        name = source.text(variable)
        if name is not None:
            return source.found("name", variable, name)
    return None


def _note_missing_launcher(source: Source, distribution: Distribution, ranks: Ranks | None) -> None:
    if distribution is Distribution.NONE or ranks is not None or source.notes:
        return
    source.notes.append(
        f"The job asks for {distribution.value} ({source.origins['distribution']}), but no launcher started this"
        " process, as in images without SageMaker's PyTorch training toolkit. Lightning launches this host's processes."
    )


def _rendezvous(
    source: Source, hosts: Hosts, ranks: Ranks | None, *, in_container: bool, simulated: bool
) -> tuple[str, int]:
    """Address and port of the process with rank 0; no address if there are several hosts and the first is unknown."""
    default = TORCHELASTIC_PORT if ranks is not None and ranks.launcher is Launcher.TORCHRUN else DEFAULT_PORT
    for address_name, port_name, offset in (
        ("MASTER_ADDR", "MASTER_PORT", 0),
        ("SM_MASTER_ADDR", "SM_MASTER_PORT", 0),
        ("SMDATAPARALLEL_SERVER_ADDR", "SMDATAPARALLEL_SERVER_PORT", SMDDP_PORT_OFFSET),
    ):
        address = source.text(address_name)
        if address is None or not _reaches_main_host(address, hosts, ranks, simulated=simulated):
            continue
        source.origins["main_address"] = address_name
        return address, (source.integer(port_name, 1) or default) + offset
    if len(hosts.names) == 1:
        return source.found("main_address", "one host", _LOOPBACK), _port(source) or _own_port(source)
    if in_container:
        return source.found("main_address", "the first host", hosts.names[0]), _port(source) or DEFAULT_PORT
    source.found("main_address", "unknown; mpirun knows it", "")
    return "", _port(source) or DEFAULT_PORT


def _reaches_main_host(address: str, hosts: Hosts, ranks: Ranks | None, *, simulated: bool) -> bool:
    """Whether an address is reliable.

    A launcher's address is. Without one, a container sets it for the distribution's groups even on hosts outside, and a
    leftover loopback address would make every host connect to itself.
    """
    if ranks is not None or simulated:
        return True
    if len(hosts.names) > 1:
        elsewhere = {name for group in hosts.groups for name in group.hosts}.difference(hosts.names)
        return address not in {_LOOPBACK, "localhost", "::1", *elsewhere}
    return address in (hosts.current, _LOOPBACK, "localhost", "::1")


def _port(source: Source) -> int | None:
    return source.integer("MASTER_PORT", 1)


def _own_port(source: Source) -> int:
    """A port that is the same in all processes of an mpirun, and rarely the same for two of them on one machine."""
    launch = source.text("PMIX_NAMESPACE")
    return DEFAULT_PORT if launch is None else 20000 + crc32(launch.encode("utf-8", "replace")) % 10000


def _smddp_version() -> str | None:
    try:
        return version("smdistributed-dataparallel")
    except PackageNotFoundError:
        return None
