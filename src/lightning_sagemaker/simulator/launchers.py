# SPDX-License-Identifier: Apache-2.0
"""Start the processes of each host: with the container's launcher if this machine has it, else directly."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightning_sagemaker.simulator.contract import Cluster, LocalClusterError
from lightning_sagemaker.simulator.host_init import NAMES_FILE
from lightning_sagemaker.simulator.network import Network
from lightning_sagemaker.simulator.open_mpi import NoOpenMPIError, OpenMPI
from lightning_sagemaker.simulator.processes import GRACE

SHIM = Path(__file__).with_name("host_init.py")

_SUPERVISED = ("smddp", "ddp", "torch_distributed")
_FLAGS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True)
class Program:
    """The user's command, parsed.

    Attributes:
        interpreter: The Python that runs the program, with its flags; empty for a program that is not Python.
        target: ``[script]``, ``["-m", module]``, ``["-c", code]`` or ``[program]``.
        arguments: Arguments of the program.

    """

    interpreter: tuple[str, ...]
    target: tuple[str, ...]
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, command: Sequence[str], cwd: Path) -> Program:
        """Parse ``command``; check that it can be run.

        Raises:
            LocalClusterError: If ``command`` is empty or has no script, or the script or program does not exist.

        """
        if not command:
            raise LocalClusterError(
                "No command was given. HINT: put it after --, such as `-- python train.py --epochs 1`."
            )
        first, rest = command[0], list(command[1:])
        if first.endswith(".py"):
            first, rest = "python", list(command)
        if not os.path.basename(first).startswith("python"):
            return cls((), (_find_program(first, cwd),), tuple(rest))
        interpreter = [sys.executable if first in ("python", "python3") else first]
        if shutil.which(interpreter[0]) is None:
            raise LocalClusterError(f"The Python {first!r} was not found. HINT: write `python` for the one in use.")
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
            count = 2 if rest[0] in _FLAGS_WITH_VALUE else 1
            interpreter, rest = interpreter + rest[:count], rest[count:]
        size = 2 if rest[:1] in (["-m"], ["-c"]) else 1
        target = rest[:size]
        if len(target) < size:
            raise LocalClusterError(f"{' '.join(command)!r} contains no script. HINT: write `python train.py`.")
        if size == 1 and not (cwd / target[0]).is_file():
            raise LocalClusterError(
                f"The script {target[0]!r} was not found in {cwd}. HINT: give its path from there, or use --source-dir."
            )
        return cls(tuple(interpreter), tuple(target), tuple(rest[size:]))

    @property
    def entry_point(self) -> str:
        """Script, module or program, as SageMaker names the entry point."""
        return os.path.normpath(self.target[-1]) if self.target[0] != "-c" else "-c"

    @property
    def command(self) -> list[str]:
        """The full command, with the interpreter resolved."""
        return [*self.interpreter, *self.target, *self.arguments]

    @property
    def python(self) -> str:
        """The interpreter for launchers that are written in Python."""
        return self.interpreter[0] if self.interpreter else sys.executable

    def has_module(self, name: str) -> bool:
        """Whether the interpreter of this program can find a module."""
        code = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"
        return subprocess.run([self.python, "-c", code], check=False, capture_output=True, timeout=60).returncode == 0


def _find_program(name: str, cwd: Path) -> str:
    """The program as the hosts start it in the folder ``cwd``, which need not be this process's."""
    if not os.path.dirname(name) and shutil.which(name) is not None:
        return name
    if (cwd / name).is_file() and not os.access(cwd / name, os.X_OK):
        raise LocalClusterError(f"{name!r} is not executable. HINT: run `chmod +x {name}`, or write `bash {name}`.")
    if shutil.which(cwd / name) is None:
        raise LocalClusterError(
            f"The command {name!r} was not found. HINT: give a program on the PATH, `train.py`, `python train.py` or `python"
            " -m package.module`."
        )
    return name if os.path.dirname(name) else f"./{name}"


@dataclass(frozen=True)
class Launch:
    """A plan for starting the processes of a job.

    Attributes:
        launcher: ``torchrun``, ``mpirun``, ``supervise`` or ``direct``.
        reason: One line that says which launcher was chosen and why.
        commands: Host index -> commands to run on the host, each with the variables that it adds.
        ranks: Global rank -> host index, for each rank with a separate output stream.

    """

    launcher: str
    reason: str
    commands: dict[int, list[tuple[list[str], dict[str, str]]]]
    ranks: dict[int, int] = field(default_factory=dict)


def host_shim(command: Sequence[str], host: str, network: Network | None, folder: Path) -> list[str]:
    """``command`` as the first process of ``host``, with its name if it can have one; with ``network``, in its namespace."""
    shim = [sys.executable, "-S", "-E", str(SHIM), "host", "--grace", str(GRACE), "--folder", str(folder)]
    if network is not None or (folder / NAMES_FILE).exists():
        shim += ["--hostname", host]
    shim += ["--", *command]
    return shim if network is None else network.enter(host, shim)


def _rank_shim(folder: Path, command: Sequence[str], *options: str) -> list[str]:
    return [sys.executable, "-S", "-E", str(SHIM), "rank", "--folder", str(folder), *options, "--", *command]


def plan_launch(cluster: Cluster, program: Program, folder: Path, network: Network | None) -> Launch:
    """Choose how ``program`` is started on each host of ``cluster``.

    Args:
        cluster: The job.
        program: Program of every rank.
        folder: The simulator's own folder, for the shims.
        network: Namespaces of the hosts; None if they share this machine's network.

    Raises:
        LocalClusterError: If torchrun is to start what is no Python script.

    """
    if cluster.distribution == "none":
        return _plain(cluster, program, folder)
    if cluster.distribution == "torch_distributed" or (
        cluster.contract == "modeltrainer" and cluster.distribution != "mpi"
    ):
        if not program.interpreter:
            raise LocalClusterError(
                f"{program.entry_point!r} was given with --distribution {cluster.distribution}, where AWS's containers run"
                " Python scripts only. HINT: with --distribution none it runs once on each host, and may call torchrun."
            )
        if program.has_module("torch.distributed.run"):
            return _torchrun(cluster, program, folder)
        return _direct(cluster, program, folder, "torchrun is not installed", elastic=True)
    try:
        open_mpi = OpenMPI.find(program.python, runs_ranks=bool(program.interpreter))
    except NoOpenMPIError as why:
        return _direct(cluster, program, folder, str(why), elastic=False)
    return _mpirun(open_mpi, cluster, program, folder, network)


def plan_elastic(cluster: Cluster, program: Program, fewest: int) -> Launch:
    """``lightning-sagemaker supervise`` on each host, for hosts that join and leave.

    Args:
        cluster: The job with its maximum number of hosts.
        program: Program of every rank: a Python script or module.
        fewest: Number of hosts at the start, which is the minimum.

    Raises:
        LocalClusterError: If the program or the distribution cannot be supervised.

    """
    if cluster.distribution not in _SUPERVISED:
        raise LocalClusterError(
            f"distribution={cluster.distribution!r} was set with hosts that join and leave. HINT: choose one of"
            f" {', '.join(_SUPERVISED)}, or a fixed number of hosts."
        )
    if not program.interpreter or program.target[0] == "-c":
        raise LocalClusterError(
            f"{' '.join(program.command)!r} was given with hosts that join and leave. HINT: run a Python script or module."
        )
    command = [program.python, "-m", "lightning_sagemaker.cli", "supervise"]
    command += ["--hosts", f"{fewest}:{len(cluster.hosts)}", "--processes", str(cluster.processes_per_host)]
    command += ["--coordinator", f"{cluster.main_address}:{cluster.main_port}"]
    commands: dict[int, list[tuple[list[str], dict[str, str]]]] = {
        index: [([*command, "--host-rank", str(index), *program.target, *program.arguments], {})]
        for index in range(len(cluster.hosts))
    }
    reason = f"supervise on each host, {cluster.processes_per_host} process(es) per host; it starts with {fewest}"
    return Launch("supervise", reason, commands)


def _all_ranks(cluster: Cluster) -> dict[int, int]:
    count = cluster.processes_per_host
    return {rank: rank // count for rank in range(count * len(cluster.hosts))}


def _plain(cluster: Cluster, program: Program, folder: Path) -> Launch:
    commands: dict[int, list[tuple[list[str], dict[str, str]]]] = {
        index: [(_rank_shim(folder, program.command, "--node-rank", str(index)), {})]
        for index in range(len(cluster.hosts))
    }
    reason = "no launcher: one process on each host, as in a job without a distribution"
    return Launch("direct", reason, commands, {index: index for index in commands})


def _torchrun(cluster: Cluster, program: Program, folder: Path) -> Launch:
    hosts, count = len(cluster.hosts), str(cluster.processes_per_host)
    commands: dict[int, list[tuple[list[str], dict[str, str]]]] = {}
    script = folder / "rank"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(_rank_shim(folder, (), "--processes-per-host", count))} "$@"\n')
    script.chmod(0o700)
    for index in range(hosts):
        command = [program.python, "-m", "torch.distributed.run", "--nnodes", str(hosts), "--nproc_per_node", count]
        if hosts > 1:
            command += ["--master_addr", cluster.main_address, "--master_port", str(cluster.main_port)]
            command += ["--node_rank", str(index)]
        # The program's arguments are where the container puts them: torchrun rejects those that resemble its options.
        commands[index] = [([*command, "--no-python", str(script), *program.command], {})]
    reason = f"torchrun on each host, {count} process(es) per host, as in the container"
    return Launch("torchrun", reason, commands, _all_ranks(cluster))


def _mpirun(open_mpi: OpenMPI, cluster: Cluster, program: Program, folder: Path, network: Network | None) -> Launch:
    count, ranks = cluster.processes_per_host, _all_ranks(cluster)
    why = "as in the container"
    if cluster.contract == "modeltrainer" and len(cluster.hosts) > 1:
        ranks = dict.fromkeys(range(count), 0)
        why = (
            f"as SDK 3's MPI driver does it: -np is the number per host, so processes start on {cluster.hosts[0]} only"
        )
    rank_command = program.command
    if program.interpreter:
        rank_command = [*program.interpreter, "-m", "mpi4py", *program.target, *program.arguments]
    command = [open_mpi.mpirun, "-np", str(len(ranks)), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    command += ["-mca", "orte_abort_on_non_zero_status", "1", "-mca", "btl_vader_single_copy_mechanism", "none"]
    command += open_mpi.reach_by("false") if network is None else _across(open_mpi, cluster, network, folder)
    shim = _rank_shim(folder, rank_command, "--processes-per-host", str(count), "--restore-hosts")
    where = "all hosts of this machine" if network is None else "all hosts, from the first"
    reason = f"one mpirun for {where}, {len(ranks)} process(es), {why}"
    return Launch("mpirun", reason, {0: [([*command, *shim], {})]}, ranks)


def _across(open_mpi: OpenMPI, cluster: Cluster, network: Network, folder: Path) -> list[str]:
    """Options of mpirun to reach the other hosts: a script that enters a namespace replaces ssh."""
    agent = folder / "agent"
    cases = "".join(
        f'{host}) exec {shlex.join(host_shim(("sh", "-c"), host, network, folder))} "$*" ;;\n' for host in cluster.hosts
    )
    agent.write_text(f"#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}esac\n")
    agent.chmod(0o700)
    slots = ",".join(f"{host}:{cluster.processes_per_host}" for host in cluster.hosts)
    options = ["--host", slots, "--leave-session-attached"]
    return [*options, *open_mpi.reach_by(str(agent)), *open_mpi.talk_on(network.interface)]


def _direct(cluster: Cluster, program: Program, folder: Path, why: str, *, elastic: bool) -> Launch:
    """Start each rank directly, with the variables that the missing launcher would set."""
    count, hosts, ranks = cluster.processes_per_host, len(cluster.hosts), _all_ranks(cluster)
    commands: dict[int, list[tuple[list[str], dict[str, str]]]] = {index: [] for index in range(hosts)}
    for rank, index in ranks.items():
        options = ["--processes-per-host", str(count)]
        if elastic:
            variables = _elastic_variables(cluster, rank)
        else:
            variables = _mpi_variables(cluster, rank)
            options.append("--restore-hosts")
        commands[index].append((_rank_shim(folder, program.command, *options), variables))
    missing = "torchrun" if elastic else "mpirun"
    return Launch("direct", f"each process started directly with {missing}'s variables, because {why}", commands, ranks)


def _elastic_variables(cluster: Cluster, rank: int) -> dict[str, str]:
    count, hosts = cluster.processes_per_host, len(cluster.hosts)
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank % count,
        "WORLD_SIZE": count * hosts,
        "LOCAL_WORLD_SIZE": count,
        "GROUP_RANK": rank // count,
        "GROUP_WORLD_SIZE": hosts,
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": count * hosts,
        "MASTER_ADDR": cluster.main_address,
        "MASTER_PORT": cluster.main_port,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_USE_AGENT_STORE": False,  # no agent listens on the port
    }
    return {name: str(value) for name, value in values.items()}


def _mpi_variables(cluster: Cluster, rank: int) -> dict[str, str]:
    size = cluster.processes_per_host * len(cluster.hosts)
    ranks = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "PMIX_RANK": str(rank)}
    # If MPI is initialized anyway, as by Lightning, Open MPI 4 would look for ssh, and end the process without it.
    return {**ranks, "OMPI_MCA_ess_singleton_isolated": "1"}
