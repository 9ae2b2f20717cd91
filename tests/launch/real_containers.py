# SPDX-License-Identifier: Apache-2.0
"""AWS's own container programs, as SageMaker runs them: each host has a network, a name and an /opt/ml of its own.

What is real: the program ``train`` of ``sagemaker-training``, and the drivers that the SageMaker SDK puts into a container.
What stands for SageMaker here: network and mount namespaces for the containers, links for the download of channels.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from lightning_sagemaker.simulator import network
from tests.conftest import ROOT, is_contract_variable

CONTAINERS = Path(os.environ.get("LIGHTNING_SAGEMAKER_TEST_CONTAINERS", ROOT / ".containers"))
TOOLKIT, SDK = CONTAINERS / "toolkit", CONTAINERS / "sdk" / "sagemaker" / "train"
OPEN_MPI = CONTAINERS / "open_mpi"
"""An environment with the version of AWS's images."""

TRAIN = "from sagemaker_training.cli.train import main; main()"
SM_TRAIN = "/opt/ml/input/data/sm_drivers/sm_train.sh"

# Arguments: the folder that becomes /opt/ml, the host's name, the command. Only this command sees what is mounted.
ENTER = """
set -e
stage=$(mktemp -d)
mount -t tmpfs none "$stage"
mkdir "$stage/upper" "$stage/work"
mount -t overlay -o "lowerdir=/opt,upperdir=$stage/upper,workdir=$stage/work" overlay /opt
mkdir -p /opt/ml
mount --bind "$1" /opt/ml
if [ -e /etc/environment ]; then  # the runner of MPI writes it
  cp /etc/environment "$stage/environment"
  mount --bind "$stage/environment" /etc/environment
fi
echo "$2" >/proc/sys/kernel/hostname
shift 2
exec "$@"
"""


def no_toolkit() -> str | None:
    """Why the toolkit cannot run here; None when it can."""
    if TOOLKIT.is_dir():
        return None
    return "AWS's training toolkit was not built: that takes a C compiler and Python's headers"


def no_runner() -> str | None:
    """Why the toolkit cannot run mpirun here; None when it can."""
    if no_toolkit() is None and not Path("/usr/sbin/sshd").exists():
        return "the toolkit's runner of MPI needs /usr/sbin/sshd"
    return no_toolkit()


def run_toolkit(root: Path, hosts: list[str], **environment: str) -> str:
    """Run ``train`` on every host, whose files lie in ``root``; return what was printed."""
    paths = {"PYTHONPATH": str(TOOLKIT), "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    module = {"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"}  # as AWS's images set it
    return run_hosts(root, hosts, [sys.executable, "-c", TRAIN], paths | module | environment)


def run_drivers(root: Path, hosts: list[str], script: str, config: dict | None, **environment: str) -> str:
    """Run what SDK 3's ``ModelTrainer`` puts into a container on every host; return what was printed.

    Args:
        root: One folder per host.
        hosts: Their names.
        script: The entry script.
        config: ``distributed.json``; None runs the script without a launcher.
        environment: Further variables.

    """
    spec = importlib.util.spec_from_file_location("sdk_templates", SDK / "templates.py")
    templates = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(templates)
    driver = templates.EXECUTE_BASIC_SCRIPT_DRIVER
    if config is not None:
        kind = {"driver_name": "Torchrun", "driver_script": "torchrun_driver.py"}
        driver = templates.EXEUCTE_DISTRIBUTED_DRIVER.format(**kind)
    start = templates.TRAIN_SCRIPT_TEMPLATE.format(
        working_dir="cd /opt/ml/input/data/code \n", install_requirements="", execute_driver=driver
    )
    for host in hosts:
        folder = root / host / "input" / "data" / "sm_drivers"
        subprocess.run(["cp", "-r", SDK / "container_drivers", folder], check=True)
        (folder / "sm_train.sh").write_text(start)
        (folder / "sourcecode.json").write_text(json.dumps({"entry_script": script}))
        (folder / "distributed.json").write_text(json.dumps(config or {}))
    command = ["/bin/bash", "-c", f"chmod +x {SM_TRAIN} && {SM_TRAIN}"]  # ContainerEntrypoint and ContainerArguments
    return run_hosts(root, hosts, command, environment)


def search_path(root: Path, *more: Path) -> str:
    """A PATH as in AWS's images: their mpirun, which is put into ``root``, then torchrun and a python3 with torch."""
    (root / "programs").mkdir()
    (root / "programs" / "mpirun").symlink_to(OPEN_MPI / "bin" / "mpirun")
    return os.pathsep.join(map(str, (root / "programs", Path(sys.executable).parent, *more, os.environ["PATH"])))


def run_hosts(root: Path, hosts: list[str], command: list[str], environment: Mapping[str, str]) -> str:
    """Run ``command`` on every host with ``root/HOST`` as its /opt/ml; every one must succeed."""
    clean = {name: value for name, value in os.environ.items() if not is_contract_variable(name)}
    variables = {**clean, "PATH": search_path(root), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment}
    processes, deadline = {}, time.monotonic() + 180
    with network.network(hosts, None) as joined:
        for host in hosts:
            inside = ["unshare", "--mount", "--", "sh", "-c", ENTER, "enter", str(root / host), host, *command]
            with (root / f"{host}.log").open("w") as log:
                processes[host] = subprocess.Popen(
                    joined.enter(host, inside), env=variables, stdout=log, stderr=subprocess.STDOUT
                )
        try:
            for process in processes.values():
                process.wait(timeout=deadline - time.monotonic())
        finally:
            for process in processes.values():
                process.kill()
    printed = "\n".join((root / f"{host}.log").read_text() for host in hosts)
    assert [process.returncode for process in processes.values()] == [0] * len(hosts), printed[-8000:]
    return printed
