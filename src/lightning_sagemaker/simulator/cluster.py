# SPDX-License-Identifier: Apache-2.0
"""A simulated SageMaker job: several hosts on one machine, with the files and variables of the real containers."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from lightning_sagemaker.simulator import checks
from lightning_sagemaker.simulator.containers import CONTRACTS
from lightning_sagemaker.simulator.contract import DISTRIBUTIONS, MASTER_PORT, Cluster, Folders, without_contract
from lightning_sagemaker.simulator.display import Digest, Lines, Source
from lightning_sagemaker.simulator.elastic import FILE as HOSTS_FILE
from lightning_sagemaker.simulator.elastic import Changes, ElasticHosts, plan_hosts
from lightning_sagemaker.simulator.hosts import (
    DEFAULT_REGION,
    ON_CPUS,
    SimulatedHosts,
    free_port,
    gpus_per_host,
    visible_gpus,
)
from lightning_sagemaker.simulator.hyperparameters import with_hyperparameters
from lightning_sagemaker.simulator.launchers import Program, host_shim, plan_elastic, plan_launch
from lightning_sagemaker.simulator.live_table import display
from lightning_sagemaker.simulator.names import make_names
from lightning_sagemaker.simulator.network import Network
from lightning_sagemaker.simulator.network import network as make_network
from lightning_sagemaker.simulator.network import obstacle as network_obstacle
from lightning_sagemaker.simulator.network import parse as parse_network
from lightning_sagemaker.simulator.output import lasting
from lightning_sagemaker.simulator.preload import plan as preloading
from lightning_sagemaker.simulator.processes import Job
from lightning_sagemaker.simulator.streams import Failure, sentence_of
from lightning_sagemaker.text_files import write_text

LOGS = "logs"
"""Folder in the job's folder with a log file for each launcher and each rank."""


@dataclass(frozen=True)
class LocalResult:
    """Result of a simulated job.

    Attributes:
        returncode: 0, or the exit code of the rank or launcher that failed first; 130 after Ctrl-C, 124 after a
            timeout.
        root: Folder with one folder per host.
        launcher: ``torchrun``, ``mpirun``, ``supervise`` or ``direct``; ``request`` for a rehearsed request.
        failure: The first failure, with its last lines; None after success.

    """

    returncode: int
    root: Path
    launcher: str
    failure: Failure | None = None


def run_local_cluster(
    command: Sequence[str],
    *,
    hosts: int | str = 2,
    schedule: str | None = None,
    processes_per_host: int = 1,
    distribution: str = "smddp",
    contract: str = "toolkit",
    root: str | os.PathLike[str] | None = None,
    hyperparameters: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    channels: Mapping[str, str | os.PathLike[str]] | None = None,
    source_dir: str | os.PathLike[str] | None = None,
    instance_type: str = "ml.p4d.24xlarge",
    network: str | None = None,
    preload: bool | None = None,
    timeout: float | None = None,
    output: TextIO | None = None,
    debug: bool = False,
) -> LocalResult:
    """Run ``command`` as a SageMaker job of ``hosts`` hosts on this machine.

    Args:
        command: ``["python", "train.py", "--epochs", "1"]``, ``["train.py", ...]``, ``["python", "-m", "module", ...]``
            or any program. Its ``--name value`` arguments become hyperparameters as well.
        hosts: Number of hosts, named ``algo-1`` and so on. ``"2:4"`` starts two hosts, and up to two more join and
            leave: ``lightning-sagemaker supervise`` then starts the ranks, and the script recovers in the job. The
            file ``hosts`` in ``root`` has the number wanted, and can be changed at any time.
        schedule: When hosts join and leave, such as ``"10:+1,30:-1"`` in seconds after the start.
        processes_per_host: Number of ranks that the launcher starts on each host.
        distribution: ``smddp``, ``ddp``, ``torch_distributed``, ``mpi``, ``smp`` (with ``mp_parameters`` among the
            hyperparameters) or ``none``.
        contract: ``toolkit`` (SDK 2 estimators) or ``modeltrainer`` (SDK 3).
        root: Folder for the hosts' folders; ``runs/JOB-NAME`` when None. In a folder that was used before, the content of
            ``checkpoints`` is kept, as when SageMaker restarts a job.
        hyperparameters: Further hyperparameters, which are appended to the command line as the container does it.
        environment: Environment variables of every process, as the estimator's ``environment=``.
        channels: Channel name -> local folder, linked into ``input/data``.
        source_dir: Folder that is copied to each host's code folder, in which the program then runs; None runs it in the
            working directory.
        instance_type: Instance type that the hosts report.
        network: ``netns`` or ``netns:RATE`` (``netns:1gbit``) gives each host a network namespace with an address, a
            name and a link of that rate. When None, or where namespaces are not permitted, the hosts share this
            machine's loopback.
        preload: Whether torch and Lightning are imported once, in a process from which every other is forked. None does
            so if there are more processes than cores, and the program is a Python script or module.
        timeout: Seconds after which everything is stopped; None for no limit.
        output: Stream for the prefixed lines; when None, ``sys.stdout``, with a table of the hosts on a terminal.
        debug: Show every line of every rank. Otherwise a warning of several ranks is shown once, and after a failure
            only the failed rank's last lines, with the traceback only if the error has no ``HINT:``. The files in
            ``root/logs`` have everything.

    Raises:
        LocalClusterError: If an argument is invalid; nothing has been started then.

    """
    checks.check_system()
    checks.check_choice("distribution", distribution, DISTRIBUTIONS)
    checks.check_choice("contract", contract, tuple(CONTRACTS))
    most, elastic = plan_hosts(hosts, schedule)
    checks.check_counts(most, processes_per_host, timeout)
    screen = _Screen(lasting(sys.stdout if output is None else output), output is None, debug)
    rate = None if network is None else parse_network(network)
    if network is not None and (reason := network_obstacle()) is not None:
        screen.say(f"the hosts share this machine's network, because {reason}")
        network = None
    name = f"local-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    code = None if source_dir is None else checks.check_folder("The source directory", source_dir)
    sources = {channel: checks.check_folder(f"Channel {channel!r}", path) for channel, path in (channels or {}).items()}
    container = CONTRACTS[contract]
    program = Program.parse(command, code or Path.cwd())
    program, values = with_hyperparameters(program, dict(hyperparameters or {}), container)
    visible = visible_gpus()
    cluster = Cluster(
        job_name=name,
        hosts=tuple(f"algo-{number}" for number in range(1, most + 1)),
        processes_per_host=processes_per_host,
        distribution=distribution,
        contract=contract,
        instance_type=instance_type,
        network_interface="eth0" if network or os.path.exists("/sys/class/net/eth0") else "lo",
        main_address="127.0.0.1",  # until it is known whether names resolve
        main_port=MASTER_PORT if network else free_port(),
        entry_point=program.entry_point,
        arguments=program.arguments,
        code=Path.cwd(),
        hyperparameters=values,
        channels=tuple(sources),
        gpus_per_host=gpus_per_host(len(visible), most, 1 if distribution == "none" else processes_per_host),
        region=os.environ.get("AWS_REGION", DEFAULT_REGION),
        environment=dict(environment or {}),
    )
    checks.check_limits(cluster, container)
    place = checks.make_root(Path("runs", name) if root is None else Path(root))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(checks.scratch_folder(checks.temporary_folder())))
        joined = stack.enter_context(make_network(cluster.hosts, rate)) if network else None
        reason = None if network else make_names(cluster.hosts, folder)
        if reason is None:
            cluster = replace(cluster, main_address=cluster.hosts[0])
        else:
            screen.say(f"the hosts have this machine's name, and algo-1 does not resolve: {reason}")
        simulated = SimulatedHosts(cluster=cluster, root=place, source_dir=code, channels=sources, gpus=visible)
        return _Run(simulated, program, folder, joined, screen).execute(preload, timeout, elastic)


@dataclass(frozen=True)
class _Screen:
    """Display of a job, and of the simulator's messages before and after it.

    Args:
        output: Stream to write to.
        is_own_output: Whether it is this program's standard output, which may be a terminal.
        debug: Whether every line of every rank is shown.

    """

    output: TextIO
    is_own_output: bool
    debug: bool

    def say(self, text: str) -> None:
        """Show a message of the simulator."""
        Lines(self.output).say(text)

    def display(self, cluster: Cluster, num_ranks: int) -> Lines:
        """The display while the job runs."""
        if self.debug:
            return Lines(self.output)
        title = f"{cluster.job_name}: {len(cluster.hosts)} host(s), {cluster.distribution}"
        return Digest(display(self.output, self.is_own_output, title, cluster.hosts), num_ranks)

    def show_failure(self, failure: Failure, logs: Path) -> None:
        """Show the first failure last."""
        if failure.host is None:
            self.say(f"{failure.reason}; all processes have exited")
            return
        self.say(f"{failure.reason} on {failure.host}; all other processes were stopped. Its last output:")
        for line in failure.last_lines if self.debug else sentence_of(failure.last_lines):
            Lines(self.output).show(Source(failure.host, failure.rank), line)
        self.say(f"the full output of each rank is in {logs}")


@dataclass(frozen=True)
class _Run:
    """One simulated job, from its files to its result.

    Args:
        hosts: Its hosts.
        program: Program of every rank.
        folder: The simulator's own folder.
        network: Namespaces of the hosts; None if they share this machine's network.
        screen: Display.

    """

    hosts: SimulatedHosts
    program: Program
    folder: Path
    network: Network | None
    screen: _Screen

    def execute(self, preload: bool | None, timeout: float | None, elastic: Changes | None) -> LocalResult:
        cluster = self.hosts.cluster
        if elastic is None:
            launch = plan_launch(cluster, self.program, self.folder, self.network)
        else:
            launch = plan_elastic(cluster, self.program, elastic.fewest)
        environments = [self.hosts.prepare(index, self.folder) for index in range(len(cluster.hosts))]
        own_folders = None if self.hosts.source_dir is None else environments[0].get("PYTHONPATH")
        forks, start = preloading.choose(preload, self.program, len(launch.ranks), own_folders)
        self._say_first(f"{launch.reason}{start}", environments[0])
        shown = self.screen.display(cluster, len(launch.ranks))
        job = Job(self.folder, shown, self._make_logs())
        for rank, index in launch.ranks.items():
            job.add_rank(rank, cluster.hosts[index])
        tick: Callable[[], None] | None = None
        try:
            if forks:
                with preloading.listen(self.folder) as listener:
                    command = preloading.server_command(cluster, self.program, listener)
                    job.help("preload", command, without_contract(environments[0]), self.hosts.cwd(0), listener)

            def start_host(index: int) -> None:
                host = cluster.hosts[index]
                for command, variables in launch.commands[index]:
                    first = host_shim(command, host, self.network, self.folder)
                    job.start(host, first, environments[index] | variables, self.hosts.cwd(index))

            if elastic is not None:
                wanted = self.hosts.root / HOSTS_FILE
                tick = ElasticHosts(cluster.hosts, *elastic, wanted, job, start_host, shown.say).tick
                self.screen.say(f"echo NUMBER > {wanted} changes the number of hosts")
            else:
                for index in launch.commands:
                    start_host(index)
        finally:
            try:
                failure = job.wait(timeout, tick)
            finally:
                shown.close()
        if failure is not None:
            self.screen.show_failure(failure, self.hosts.root / LOGS)
            self._write_failure(failure)
        code = 0 if failure is None else failure.returncode
        return LocalResult(code, self.hosts.root, launch.launcher, failure)

    def _say_first(self, how: str, environment: Mapping[str, str]) -> None:
        """Show how the job is started, and what differs from a real one."""
        say, gpus = self.screen.say, self.hosts.gpus
        say(f"{len(self.hosts.cluster.hosts)} simulated host(s) in {self.hosts.root}; {how}")
        if checks.temporary_folder() != tempfile.gettempdir():
            say(f"TMPDIR is {checks.temporary_folder()} for the job: your path is too long for sockets")
        if self.network is not None:
            say(f"each host has its own network, egress limit {self.network.rate or 'none'}")
        if gpus and not self.hosts.cluster.gpus_per_host:
            say(f"not using GPUs: this machine has {len(gpus)}, fewer than processes")
        if environment.get(ON_CPUS) == "true" and importlib.util.find_spec("accelerate") is not None:
            say(f"no GPU for accelerate and transformers.Trainer: they use gloo on the CPU ({ON_CPUS}=true)")

    def _make_logs(self) -> Path:
        """Create the folder of the log files, without those of an earlier job."""
        logs = self.hosts.root / LOGS
        logs.mkdir(exist_ok=True)
        for path in logs.glob("algo-*.log"):  # the folder may be one of the user, with other files
            path.unlink()
        return logs

    def _write_failure(self, failure: Failure) -> None:
        """Write a host's failure to ``output/failure``, which SageMaker reads; what the script wrote takes precedence."""
        if failure.host is not None:
            path = Folders(self.hosts.root / failure.host).failure
            if not path.exists() or not path.stat().st_size:
                write_text(path, failure_text(f"{failure.reason} on {failure.host}", failure.last_lines))


def failure_text(where: str, lines: Sequence[str]) -> str:
    """The text of ``output/failure``: the exception first, since SageMaker shows 1 024 characters of it."""
    exception = [line for line in lines if line and not line[0].isspace()]
    last = exception[-1] if exception else ""
    return "\n".join([f"{last} ({where})" if last else where, *lines]) + "\n"
