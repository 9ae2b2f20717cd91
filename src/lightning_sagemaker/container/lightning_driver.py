# SPDX-License-Identifier: Apache-2.0
"""The first process of a training container: starts and supervises the training processes of this host.

It is sent with a job and run by the SageMaker SDK's ``sm_train.sh``, in whatever image the job uses: so it needs the
standard library only, and is written in Python 3.6. It installs the job's requirements against the image's torch; sets
``SM_FRAMEWORK_PARAMS``, which SDK 3 omits; starts torchrun, or delegates to the training toolkit in the image where
AWS's own libraries need mpirun; forwards SIGTERM to every training process, which neither the toolkit nor SDK 3's
drivers do; and writes the exception to ``output/failure``, where SageMaker reads it.
"""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_sagemaker.container.lightning_groups import group_variables, hosts, training_hosts
    from lightning_sagemaker.container.lightning_supervisor import Supervisor, log, write_failure
else:  # in a container the files are in one folder, and this package may be missing
    from lightning_groups import group_variables, hosts, training_hosts
    from lightning_supervisor import Supervisor, log, write_failure

NAMES_TIMEOUT = 900.0
"""Seconds to wait for the names of all hosts to resolve, as in the training toolkit."""

_IS_RANK = "LIGHTNING_SAGEMAKER_DRIVER_RANK"
_SIMULATED = bool(os.environ.get("LIGHTNING_SAGEMAKER_SIMULATED"))
_BASE = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
_TOOLKIT = "from sagemaker_training.cli.train import main; main()"
_VENDORED = "vendored_wheels"
"""Folder in the source of a job without network: the packages that requirements.txt needs."""
_RDMA = re.compile(r"ml\.(p4|p5|p6|trn)")


def main() -> int:
    """Run the job on this host; the exit code is the program's, and 143 after SIGTERM."""
    config = json.loads(os.environ.get("SM_DISTRIBUTED_CONFIG") or "{}")
    entry = os.environ.get("SM_ENTRY_SCRIPT", "")
    if os.environ.get(_IS_RANK):
        command = program(entry)
        os.execvp(command[0], command)
    install_requirements()
    turn_back(config)
    os.environ.update(variables_of(config))
    wait_for_names(hosts())
    command, why = launch_command(config, entry)
    log(why)
    return Supervisor(command).run()


def turn_back(config: "dict[str, Any]") -> None:
    """Restore the names and values of hyperparameters and channels that the SDK's start script cannot pass on."""
    names, packed = config.get("names") or {}, config.get("packed") or []
    values, channels = turned_back(config, json.loads(os.environ.get("SM_HPS") or "{}"))
    for name in names:
        os.environ.pop("SM_HP_" + variable(name), None)
    for name, value in values.items():
        if name in packed or name in names.values():
            os.environ["SM_HP_" + variable(name)] = value if isinstance(value, str) else json.dumps(value)
    for name, real in channels.items():
        folder = os.environ.pop("SM_CHANNEL_" + name.upper(), os.path.join(_BASE, "input", "data", name))
        link = os.path.join(os.path.dirname(folder), real)
        with contextlib.suppress(OSError):  # in a read-only file system, only the variable is set
            if not os.path.lexists(link):
                os.symlink(folder, link)
        os.environ["SM_CHANNEL_" + real.upper()] = link if os.path.isdir(link) else folder
    if names or packed or channels:
        about = json.loads(os.environ.get("SM_TRAINING_ENV") or "{}")
        folders = {channels.get(name, name): place for name, place in about.get("channel_input_dirs", {}).items()}
        about.update({"hyperparameters": values, "channel_input_dirs": folders})
        os.environ["SM_TRAINING_ENV"] = json.dumps(about)
        os.environ["SM_HPS"] = json.dumps(values)
        known = json.loads(os.environ.get("SM_CHANNELS") or "[]")
        os.environ["SM_CHANNELS"] = json.dumps([channels.get(name, name) for name in known])


def turned_back(config: "dict[str, Any]", sent: "dict[str, Any]") -> "tuple[dict[str, Any], dict[str, str]]":
    """Hyperparameters with their original names and values, and channel as sent -> original name.

    Args:
        config: ``distributed.json``.
        sent: Hyperparameters as the SDK's start script has decoded them.

    """
    names, packed = config.get("names") or {}, config.get("packed") or []
    values = {names.get(name, name): json.loads(value) if name in packed else value for name, value in sent.items()}
    return values, config.get("channels") or {}


def variable(name: str) -> str:
    """A hyperparameter's part of a variable name, as in the training toolkit."""
    return name.replace("-", "_").upper()


def program(entry: str) -> "list[str]":
    """The user's script with the hyperparameters as its arguments."""
    if not os.path.isfile(entry):
        message = f"the entry script {entry!r} is not in {os.getcwd()}"
        write_failure(message, [])
        raise SystemExit("lightning-sagemaker: error: " + message)
    start = shell(entry) if entry.endswith(".sh") else [sys.executable, "-u"]
    return [*start, entry, *arguments(json.loads(os.environ.get("SM_HPS") or "{}"))]


def shell(entry: str) -> "list[str]":
    """What a shell script names in its first line: SDK 2's and SDK 3's containers make it executable and run it."""
    with open(entry, "rb") as file:
        first = file.readline().decode("utf-8", "replace")
    named = first[2:].strip().split(None, 1) if first.startswith("#!") else []
    return named or ["/bin/sh"]


def arguments(hyperparameters: "dict[str, object]") -> "list[str]":
    """Command line for hyperparameters as the training toolkit writes it; lists and dictionaries as JSON."""
    found = []
    for name, value in sorted(hyperparameters.items()):
        found.append("-" + name if len(name) == 1 else "--" + name)
        if isinstance(value, (dict, list)):
            found.append(json.dumps(value))
        else:
            found.append("" if value is None else str(value))
    return found


def wait_for_names(names: "list[str]") -> None:
    """Wait until every host's name resolves."""
    if _SIMULATED or len(names) == 1:
        return
    deadline = time.time() + NAMES_TIMEOUT
    for name in names:
        while not has_address(name):
            if time.time() > deadline:
                write_failure(f"the host {name} does not resolve after {NAMES_TIMEOUT:.0f} s", [])
                raise SystemExit(1)
            time.sleep(1.0)


def has_address(name: str) -> bool:
    """Whether a name resolves."""
    with contextlib.suppress(OSError):
        return bool(socket.getaddrinfo(name, None))
    return False


def variables_of(config: "dict[str, Any]") -> "dict[str, str]":
    """Variables that SDK 2's containers set and SDK 3's do not; the user's own values take precedence."""
    instance = os.environ.get("SM_CURRENT_INSTANCE_TYPE", "")
    flags = dict(config.get("flags") or {})
    if flags:
        flags["sagemaker_instance_type"] = instance
    found = {
        "SM_FRAMEWORK_PARAMS": json.dumps(flags, sort_keys=True, separators=(",", ":")),
        "SAGEMAKER_JOB_NAME": os.environ.get("TRAINING_JOB_NAME", ""),  # transformers detects a job by it
        "SAGEMAKER_REGION": os.environ.get("AWS_REGION", ""),
        "NCCL_SOCKET_IFNAME": os.environ.get("SM_NETWORK_INTERFACE_NAME", "eth0"),
    }
    if flags:
        found["NCCL_PROTO"] = "simple"
    devices = os.listdir("/sys/class/infiniband") if os.path.isdir("/sys/class/infiniband") else []
    if any(name.startswith(("efa", "rdmap")) for name in devices):
        found["FI_PROVIDER"] = "efa"
        if _RDMA.match(instance):
            found.update({"FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"})
    if config.get("smp"):
        found["SM_HP_MP_PARAMETERS"] = json.dumps(config["smp"])
    found.update(group_variables(config))
    return {name: value for name, value in found.items() if name not in os.environ}


def launch_command(config: "dict[str, Any]", entry: str) -> "tuple[list[str], str]":
    """The command that starts this host's part of the job, and the reason as a sentence."""
    kind = config.get("distribution", "none")
    if kind == "none" and not config.get("process_count_per_node"):
        return program(entry), "one process, as in a job without a distribution"
    names, current = training_hosts(config), os.environ.get("SM_CURRENT_HOST", "")
    if config.get("groups") and current not in names:
        return program(entry), "one process, as this host is not in the training instance group, " + config["groups"][0]
    reason = toolkit_reason(config, kind)
    if reason is not None:
        return toolkit_command(config, entry), reason
    count = int(config.get("process_count_per_node") or os.environ.get("SM_NUM_GPUS") or 0) or 1
    ranks = f"{kind} on {len(names)} host(s), {count} process(es) on each"
    if config.get("recovery") == "in_job":
        if importlib.util.find_spec("lightning_sagemaker") is not None:
            return supervise(names, current, count, entry), f"supervise, which replaces processes that die, for {ranks}"
        log("recovery in the job needs lightning_sagemaker, which is not installed here: torchrun starts the processes")
    command = [*torchrun(), f"--nnodes={len(names)}", f"--nproc_per_node={count}"]
    if len(names) > 1:
        command += [
            "--master_addr=" + os.environ.get("LIGHTNING_SAGEMAKER_MAIN_ADDRESS", names[0]),
            "--master_port=" + os.environ.get("LIGHTNING_SAGEMAKER_MAIN_PORT", os.environ["SM_MASTER_PORT"]),
            "--node_rank=" + str(names.index(current)),
        ]
    os.environ[_IS_RANK] = "1"
    # torchrun would parse some of the script's arguments as its own: each rank reads them by itself.
    command.append(os.path.abspath(__file__))
    return command, f"torchrun for {ranks}"


def supervise(names: "list[str]", current: str, count: int, entry: str) -> "list[str]":
    """The command of this package's own launcher, which passes the script's arguments on unchanged."""
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", str(count)]
    if len(names) > 1:
        address = os.environ.get("LIGHTNING_SAGEMAKER_MAIN_ADDRESS", names[0])
        port = os.environ.get("LIGHTNING_SAGEMAKER_MAIN_PORT") or os.environ.get("SM_MASTER_PORT", "7777")
        command += ["--hosts", str(len(names)), "--host-rank", str(names.index(current))]
        command += ["--coordinator", address + ":" + port]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    script = program(entry)
    if script[0] == sys.executable:
        return command + script[script.index(entry) :]
    os.environ[_IS_RANK] = "1"
    return [*command, os.path.abspath(__file__)]


def torchrun() -> "list[str]":
    """Torchrun of the image's torch; the oldest images have it under another name."""
    spec = importlib.util.find_spec("torch")
    folder = os.path.dirname(spec.origin or "") if spec else ""
    if os.path.isfile(os.path.join(folder, "distributed", "run.py")):
        return [sys.executable, "-m", "torch.distributed.run"]
    return [sys.executable, "-m", "torch.distributed.launch", "--use_env"]


def toolkit_reason(config: "dict[str, Any]", kind: str) -> "str | None":
    """Why the training toolkit in the image starts the processes; None if torchrun does."""
    if _SIMULATED or kind not in ("smddp", "mpi", "smp") or (kind != "mpi" and config.get("torchrun")):
        return None
    if importlib.util.find_spec("sagemaker_training") is None:
        if kind == "mpi":
            log("the image has no SageMaker training toolkit, which starts mpirun: torchrun is used instead")
        return None
    if kind == "mpi":
        return "mpirun, started by the image's training toolkit"
    if importlib.util.find_spec("smdistributed") is None:
        return None
    return "mpirun with AWS's smdistributed, started by the image's training toolkit"


def toolkit_command(config: "dict[str, Any]", entry: str) -> "list[str]":
    """The toolkit's command, in a folder tree like that of SDK 2's estimators."""
    base = os.path.join(tempfile.mkdtemp(prefix="lightning-sagemaker-"), "ml")
    os.makedirs(os.path.join(base, "input", "config"))
    for name in ("model", "output", "checkpoints", "input/data"):
        os.makedirs(os.path.join(_BASE, name), exist_ok=True)
        os.symlink(os.path.join(_BASE, name), os.path.join(base, name))
    with open(os.path.join(_BASE, "input", "config", "inputdataconfig.json")) as file:
        channels = json.load(file)
    with open(os.path.join(base, "input", "config", "inputdataconfig.json"), "w") as file:
        real = config.get("channels") or {}
        json.dump({real.get(name, name): value for name, value in channels.items()}, file)
    shutil.copy(os.path.join(_BASE, "input", "config", "resourceconfig.json"), os.path.join(base, "input", "config"))
    values = dict(json.loads(os.environ.get("SM_HPS") or "{}"))
    values.update(json.loads(os.environ["SM_FRAMEWORK_PARAMS"]))
    values.update({"sagemaker_program": entry, "sagemaker_submit_directory": os.getcwd()})
    with open(os.path.join(base, "input", "config", "hyperparameters.json"), "w") as file:
        json.dump({name: json.dumps(value) for name, value in values.items()}, file)
    os.environ["SAGEMAKER_BASE_DIR"] = base
    os.environ.setdefault("SAGEMAKER_TRAINING_MODULE", "sagemaker_pytorch_container.training:main")
    train = shutil.which("train")
    return [train] if train else [sys.executable, "-c", _TOOLKIT]


def install_requirements() -> None:
    """Install the job's requirements, against the image's torch."""
    wheels = sorted(name for name in os.listdir(".") if name.endswith(".whl"))
    if _SIMULATED and wheels:
        site = os.path.join(_BASE, "site")
        for name in wheels:
            with zipfile.ZipFile(name) as archive:
                archive.extractall(site)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (site, os.environ.get("PYTHONPATH"))))
    if not os.path.isfile("requirements.txt"):
        return
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-r", "requirements.txt"]
    torch = torch_version()
    if torch is not None:
        constraints = tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False)  # noqa: SIM115
        constraints.write(f"torch=={torch}\n")
        constraints.close()
        command += ["-c", constraints.name]
    if os.path.isdir(_VENDORED):  # the container has no network
        command += ["--no-index", "--find-links", _VENDORED]
    if _SIMULATED:
        command += ["--dry-run", "--no-index", "--quiet"]
        log("a rehearsal installs nothing: it checks that requirements.txt is satisfied here")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)  # noqa: UP021
    if done.returncode or not _SIMULATED:
        print(done.stdout, flush=True)
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line] or done.stdout.splitlines()[-3:]
        write_failure("requirements.txt cannot be installed: " + " ".join(lines), [])
        raise SystemExit(done.returncode)


def torch_version() -> "str | None":
    """The version of torch in this image; None if it has none."""
    try:
        from importlib import metadata

        return metadata.version("torch")
    except ImportError:  # Python 3.6 and 3.7, and PackageNotFoundError is one
        return None


if __name__ == "__main__":
    sys.exit(main())
