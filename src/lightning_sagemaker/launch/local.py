# SPDX-License-Identifier: Apache-2.0
"""A simulated SageMaker job: several hosts on one machine, with the files and variables of the real containers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from lightning_sagemaker.launch import modeltrainer, toolkit
from lightning_sagemaker.launch.contract import (
    MAX_HYPERPARAMETERS,
    MAX_NAME,
    MAX_VALUE,
    Cluster,
    Folders,
    write_atomically,
)
from lightning_sagemaker.launch.hosts import (
    gpu_variables,
    host_environment,
    own_environment,
    prepare_folders,
    rank_environment,
)
from lightning_sagemaker.launch.launchers import LocalClusterError, Program, host_shim, plan_launch
from lightning_sagemaker.launch.processes import Failure, Job

DISTRIBUTIONS = ("smddp", "ddp", "torch_distributed", "mpi", "none")
CONTRACTS: dict[str, ModuleType] = {"toolkit": toolkit, "modeltrainer": modeltrainer}

_CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OPTION = re.compile(r"--?(?P<name>[A-Za-z_][^=]*)(=(?P<value>.*))?", re.DOTALL)
_REGION = "us-east-1"


@dataclass(frozen=True)
class LocalResult:
    """How a simulated job ended.

    Attributes:
        returncode: 0, or the exit code of the rank or launcher that failed first; 130 after Ctrl-C, 124 after a timeout.
        root: The folder with one folder per host.
        launcher: ``torchrun``, ``mpirun`` or ``direct``.
        failure: What failed first, with its last lines; None after success.

    """

    returncode: int
    root: Path
    launcher: str
    failure: Failure | None = None


def run_local_cluster(
    command: Sequence[str],
    *,
    hosts: int = 2,
    processes_per_host: int = 1,
    distribution: str = "smddp",
    contract: str = "toolkit",
    root: str | os.PathLike[str] | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    channels: Mapping[str, str | os.PathLike[str]] | None = None,
    source_dir: str | os.PathLike[str] | None = None,
    instance_type: str = "ml.p4d.24xlarge",
    timeout: float | None = None,
    output: TextIO | None = None,
) -> LocalResult:
    """Run ``command`` as a SageMaker job of ``hosts`` hosts on this machine.

    Args:
        command: ``["python", "train.py", "--epochs", "1"]``, ``["train.py", ...]``, ``["python", "-m", "module", ...]`` or
            any program. Its ``--name value`` arguments become hyperparameters as well.
        hosts: Number of hosts, named ``algo-1`` and so on.
        processes_per_host: Processes that the launcher starts on each host.
        distribution: ``smddp``, ``ddp``, ``torch_distributed``, ``mpi`` or ``none``.
        contract: ``toolkit`` (SDK 2 estimators) or ``modeltrainer`` (SDK 3).
        root: Folder for the hosts' folders; ``runs/JOB-NAME`` when None. In a folder that was used before, what is in
            ``checkpoints`` stays, as when SageMaker restarts a job.
        hyperparameters: Further ones; they reach the program's command line as the container writes them.
        environment: Variables that every process gets, as the estimator's ``environment=`` does.
        channels: Channel name -> local folder, linked into ``input/data``.
        source_dir: Copied to each host's code folder, where the program then runs; None runs it in the working directory.
        instance_type: What the hosts are told they are.
        timeout: Seconds after which everything is stopped.
        output: Where the prefixed lines go; ``sys.stdout`` when None.

    Raises:
        LocalClusterError: If something in the request is wrong; nothing has been started then.

    """
    _check_names(distribution, contract)
    _check_counts(hosts, processes_per_host)
    output = sys.stdout if output is None else output
    name = f"local-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    place = _make_root(Path("runs", name) if root is None else Path(root))
    code = None if source_dir is None else _check_folder("The source directory", source_dir)
    sources = {channel: _check_folder(f"Channel {channel!r}", path) for channel, path in (channels or {}).items()}
    module = CONTRACTS[contract]
    program = Program.parse(command, code or Path.cwd())
    program, values = with_hyperparameters(program, dict(hyperparameters or {}), module)
    visible = _visible_gpus()
    cluster = Cluster(
        job_name=name,
        hosts=tuple(f"algo-{number}" for number in range(1, hosts + 1)),
        processes_per_host=processes_per_host,
        distribution=distribution,
        contract=contract,
        instance_type=instance_type,
        network_interface="eth0" if os.path.exists("/sys/class/net/eth0") else "lo",
        main_address="127.0.0.1",
        main_port=_free_port(),
        entry_point=program.entry_point,
        arguments=program.arguments,
        code=Path.cwd(),
        hyperparameters=values,
        channels=tuple(sources),
        gpus_per_host=_gpus_per_host(len(visible), hosts, 1 if distribution == "none" else processes_per_host),
        region=os.environ.get("AWS_REGION", _REGION),
        environment=dict(environment or {}),
    )
    _check_limits(cluster)
    problem = module.check(cluster)
    if problem is not None:
        raise LocalClusterError(problem)
    with tempfile.TemporaryDirectory(prefix="lightning-sagemaker-") as folder:
        run = _Run(cluster, program, module, place, Path(folder), output, code, sources, visible)
        return run.execute(timeout)


@dataclass(frozen=True)
class _Run:
    """One job from the files to the result."""

    cluster: Cluster
    program: Program
    module: ModuleType
    root: Path
    folder: Path
    output: TextIO
    code: Path | None
    sources: Mapping[str, Path]
    visible_gpus: list[str]

    def execute(self, timeout: float | None) -> LocalResult:
        launch = plan_launch(self.cluster, self.program, self.folder)
        names = self.cluster.hosts
        _say(self.output, f"{len(names)} simulated host(s) in {self.root}; {launch.reason}")
        if self.visible_gpus and not self.cluster.gpus_per_host:
            _say(
                self.output,
                f"no GPU is used: this machine has {len(self.visible_gpus)}, fewer than there are processes",
            )
        job = Job(self.folder, self.output)
        for rank, index in launch.ranks.items():
            job.add_rank(rank, names[index])
        environments = [self._prepare(index) for index in range(len(names))]
        try:
            for index, commands in launch.commands.items():
                for command, variables in commands:
                    job.start(names[index], host_shim(command), environments[index] | variables, self._cwd(index))
        finally:
            failure = job.wait(timeout)
        if failure is not None:
            self._report(failure)
        return LocalResult(0 if failure is None else failure.returncode, self.root, launch.launcher, failure)

    def _folders(self, index: int) -> Folders:
        return Folders(self.root / self.cluster.hosts[index])

    def _cwd(self, index: int) -> Path:
        return self.cluster.code if self.code is None else self._folders(index).base / self.module.CODE

    def _prepare(self, index: int) -> dict[str, str]:
        """Write the files of a host; return the variables of its first process."""
        cluster, folders = replace(self.cluster, code=self._cwd(index)), self._folders(index)
        prepare_folders(cluster, self.module, folders, cluster.hosts[index], self.sources, self.code)
        gpus = gpu_variables(self.visible_gpus, index, cluster.gpus_per_host)
        of_ranks = rank_environment(cluster, self.module, index, folders) | gpus
        write_atomically(self.folder / f"host-{index}.json", json.dumps(of_ranks))
        # The hosts share this machine's cores; torchrun and Open MPI would use all of them once per process.
        threads = (os.cpu_count() or 1) // (len(cluster.hosts) * cluster.processes_per_host)
        base = {"OMP_NUM_THREADS": str(max(1, threads))} | own_environment()
        return base | host_environment(cluster, self.module, cluster.hosts[index], folders) | gpus

    def _report(self, failure: Failure) -> None:
        """Say last what came first, and leave it where SageMaker would look for it."""
        if failure.host is None:
            _say(self.output, f"{failure.reason}; every process has ended")
            return
        where = f"{failure.reason} on {failure.host}"
        _say(self.output, f"{where}; every other process was stopped. It wrote last:")
        prefix = failure.host if failure.rank is None else f"{failure.host} [{failure.rank}]"
        for line in failure.last_lines:
            self.output.write(f"{prefix} | {line}\n")
        self.output.flush()
        path = Folders(self.root / failure.host).failure
        if (
            not path.exists() or not path.stat().st_size
        ):  # a script's own words are better, and SageMaker keeps them too
            write_atomically(path, failure_text(where, failure.last_lines))


def failure_text(where: str, lines: Sequence[str]) -> str:
    """The text of ``output/failure``: the exception first, since SageMaker shows 1 024 characters of it."""
    exception = [line for line in lines if line and not line[0].isspace()]
    last = exception[-1] if exception else ""
    return "\n".join([f"{last} ({where})" if last else where, *lines]) + "\n"


def with_hyperparameters(program: Program, extra: dict[str, Any], module: ModuleType) -> tuple[Program, dict[str, Any]]:
    """Add ``extra`` hyperparameters to the command line of ``program``, and read the others from it."""
    typed = hyperparameters_of(program.arguments)
    arguments = (*program.arguments, *module.to_arguments(extra))
    return replace(program, arguments=arguments), typed | extra


def hyperparameters_of(arguments: Sequence[str]) -> dict[str, Any]:
    """The hyperparameters that a command line of ``--name value`` pairs stands for; positional arguments are none."""
    found: dict[str, Any] = {}
    waiting: str | None = None
    for argument in arguments:
        option = _OPTION.fullmatch(argument)
        if option is None:
            if waiting is not None:
                found[waiting] = _decode(argument)
            waiting = None
            continue
        name, value = option["name"], option["value"]
        found[name] = True if value is None else _decode(value)
        waiting = name if value is None else None
    return found


def _decode(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"  # the words that the toolkit writes for booleans
    try:
        return json.loads(text, parse_constant=_not_json)
    except ValueError:
        return text


def _not_json(name: str) -> None:
    raise ValueError(name)


def _check_names(distribution: str, contract: str) -> None:
    for what, given, known in (("distribution", distribution, DISTRIBUTIONS), ("contract", contract, tuple(CONTRACTS))):
        if given not in known:
            raise LocalClusterError(f"{what}={given!r} is not known. HINT: choose one of {', '.join(known)}.")


def _check_counts(hosts: int, processes_per_host: int) -> None:
    for what, given in (("hosts", hosts), ("processes_per_host", processes_per_host)):
        if given < 1:
            raise LocalClusterError(f"{what}={given} was set. HINT: it counts from 1.")


def _make_root(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root):
            pass
    except OSError as error:
        raise LocalClusterError(
            f"The hosts' folders cannot be made in {str(root)!r}: {error.strerror}. HINT: choose another --root."
        ) from error
    return root.resolve()


def _check_folder(what: str, path: str | os.PathLike[str]) -> Path:
    if not os.path.isdir(path):
        raise LocalClusterError(
            f"{what} was set to {os.fspath(path)!r}, which is no folder. HINT: give an existing one."
        )
    return Path(path).resolve()


def _check_limits(cluster: Cluster) -> None:
    """CreateTrainingJob's own limits: a rehearsal that passes must not be refused there."""
    values = CONTRACTS[cluster.contract].hyperparameters_file(cluster)
    if len(values) > MAX_HYPERPARAMETERS:
        raise LocalClusterError(
            f"{len(values)} hyperparameters were given, SageMaker takes {MAX_HYPERPARAMETERS}. HINT: pass a file."
        )
    for name, value in values.items():
        if len(name) > MAX_NAME or len(value) > MAX_VALUE:
            raise LocalClusterError(
                f"Hyperparameter {name[:MAX_NAME]!r} has {len(value)} characters, SageMaker takes {MAX_VALUE} (and"
                f" {MAX_NAME} in a name). HINT: pass a file."
            )
    for name in cluster.channels:
        if not _CHANNEL_NAME.fullmatch(name):
            raise LocalClusterError(
                f"Channel {name!r} was set. HINT: SageMaker takes 1 to 64 letters, digits, dots, dashes and underscores."
            )


def _visible_gpus() -> list[str]:
    """This machine's GPUs by the names that CUDA_VISIBLE_DEVICES uses; counted as the containers do, by nvidia-smi."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(
        ["nvidia-smi", "--list-gpus"], check=False, capture_output=True, text=True, timeout=60
    ).stdout
    return [str(index) for index, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


def _gpus_per_host(visible: int, hosts: int, processes: int) -> int:
    """An equal share for each host, or none where a process would have to do without."""
    share = visible // hosts
    return share if share >= processes else 0


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _say(output: TextIO, line: str) -> None:
    output.write(f"lightning-sagemaker: {line}\n")
    output.flush()
