# SPDX-License-Identifier: Apache-2.0
"""The classic container: what ``sagemaker-training`` 5.1.4 with ``sagemaker-pytorch-training`` 3.0.0 sets.

SDK 2's estimators use it, as do images whose entry point is the program ``train``.
"""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_sagemaker.simulator.contract import (
    GROUP,
    LOG_LEVEL,
    Cluster,
    Folders,
    compact,
    fabric_variables,
    input_data_config,
    resource_config,
)

TRAINING_MODULE = "sagemaker_pytorch_container.training:main"

CODE = "code"
"""Path of the user's code, relative to the host's folder."""

SMDDP_SERVER_PORT = 7592
"""The port of SMDDP's own server on the first host, a constant of the toolkit."""

_FLAGS: dict[str, dict[str, object]] = {
    "smddp": {
        "sagemaker_distributed_dataparallel_enabled": True,
        "sagemaker_distributed_dataparallel_custom_mpi_options": "",
    },
    "ddp": {"sagemaker_pytorch_ddp_enabled": True},
    "torch_distributed": {"sagemaker_torch_distributed_enabled": True},
    "mpi": {"sagemaker_mpi_enabled": True},
    "smp": {"sagemaker_mpi_enabled": True, "sagemaker_distributed_dataparallel_enabled": False},
    "none": {},
}


def framework_parameters(cluster: Cluster) -> dict[str, object]:
    """``SM_FRAMEWORK_PARAMS``: what SDK 2's estimators send for each ``distribution=``.

    The number of processes is sent for ``mpi`` and ``smp``, and where it is not that of the GPUs, so that the toolkit
    starts several processes on a machine without GPUs.
    """
    parameters = dict(_FLAGS[cluster.distribution])
    if cluster.distribution in ("smddp", "ddp", "torch_distributed", "smp"):
        parameters["sagemaker_instance_type"] = cluster.instance_type
    counted = cluster.gpus_per_host or 1
    if parameters and (cluster.distribution in ("mpi", "smp") or counted != cluster.processes_per_host):
        parameters["sagemaker_mpi_num_of_processes_per_host"] = cluster.processes_per_host
    return parameters


def hyperparameters_file(cluster: Cluster) -> dict[str, str]:
    """``hyperparameters.json``: the user's and the SDK's own, each value as JSON text (SDK 2 framework estimators)."""
    reserved = {
        "sagemaker_program": cluster.entry_point,
        "sagemaker_submit_directory": str(cluster.code),
        "sagemaker_container_log_level": LOG_LEVEL,
        "sagemaker_job_name": cluster.job_name,
        "sagemaker_region": cluster.region,
    }
    everything = {**cluster.hyperparameters, **reserved, **framework_parameters(cluster)}
    return {name: json.dumps(value) for name, value in everything.items()}


def all_channels(cluster: Cluster) -> tuple[str, ...]:
    """The channels of the job: the user's."""
    return cluster.channels


def check(cluster: Cluster) -> str | None:
    """None: this generation of containers has no known limit."""
    return None


def to_arguments(hyperparameters: dict[str, object]) -> list[str]:
    """Hyperparameters as the toolkit's arguments: sorted, one dash for a single letter, Python's text of values."""
    arguments: list[str] = []
    for name, value in sorted(hyperparameters.items()):
        if value is None:
            text = ""
        elif isinstance(value, dict):
            text = ",".join(f"{key}={item}" for key, item in sorted(value.items()))
        else:
            text = str(value)
        arguments += [f"-{name}" if len(name) == 1 else f"--{name}", text]
    return arguments


def host_environment(cluster: Cluster, host: str, folders: Folders) -> dict[str, str]:
    """Variables that the toolkit and the service set on ``host`` before any launcher runs."""
    group = resource_config(cluster, host)["instance_groups"][0]
    parameters = framework_parameters(cluster)
    distributed = [GROUP] if parameters else []
    facts: dict[str, Any] = {
        "channel_input_dirs": {name: str(folders.data / name) for name in cluster.channels},
        "current_host": host,
        "current_instance_group": GROUP,
        "current_instance_group_hosts": list(cluster.hosts),
        "current_instance_type": cluster.instance_type,
        "distribution_instance_groups": distributed,
        "framework_module": TRAINING_MODULE,
        "hosts": list(cluster.hosts),
        "input_config_dir": str(folders.config),
        "input_data_config": input_data_config(cluster.channels),
        "input_dir": str(folders.base / "input"),
        "instance_groups": [GROUP],
        "instance_groups_dict": {GROUP: group},
        "is_hetero": False,
        "log_level": LOG_LEVEL,
        "model_dir": str(folders.base / "model"),
        "module_dir": str(cluster.code),
        "module_name": cluster.entry_point.removesuffix(".py"),
        "network_interface_name": cluster.network_interface,
        "num_cpus": os.cpu_count() or 1,
        "num_gpus": cluster.gpus_per_host,
        "num_neurons": 0,
        "output_data_dir": str(folders.base / "output" / "data"),
        "output_dir": str(folders.base / "output"),
        "output_intermediate_dir": str(folders.base / "output" / "intermediate"),
        "resource_config": resource_config(cluster, host),
        "user_entry_point": cluster.entry_point,
    }
    only_in_summary = {
        "additional_framework_parameters": parameters,
        "distribution_hosts": list(cluster.hosts) if distributed else [],
        "hyperparameters": dict(cluster.hyperparameters),
        "is_master": host == cluster.hosts[0],
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": cluster.job_name,
        "master_hostname": cluster.hosts[0],
        "topology": [],
    }
    variables = {f"SM_{name.upper()}": value for name, value in facts.items() if name != "channel_input_dirs"}
    variables |= {
        "SM_CHANNELS": sorted(cluster.channels),
        "SM_FRAMEWORK_PARAMS": parameters,
        "SM_HPS": dict(cluster.hyperparameters),
        "SM_TRAINING_ENV": {**facts, **only_in_summary},
        "SM_USER_ARGS": list(cluster.arguments),
    }
    variables |= {f"SM_CHANNEL_{name.upper()}": path for name, path in facts["channel_input_dirs"].items()}
    variables |= {f"SM_HP_{name.upper()}": value for name, value in cluster.hyperparameters.items()}
    if (version := _torch_version()) is not None:
        variables["SM_DLC_TORCH_VERSION"] = version
    return {name: _bare(value) for name, value in variables.items()} | _service_variables(cluster, host)


def launcher_environment(cluster: Cluster) -> dict[str, str]:
    """Variables that the toolkit adds for the runner of this distribution."""
    if cluster.distribution == "none":
        return {}
    variables = {"NCCL_PROTO": "simple", **fabric_variables(cluster)}
    if cluster.distribution == "torch_distributed":
        return variables
    variables["NCCL_DEBUG"] = "INFO"
    if cluster.distribution in ("mpi", "smp"):
        variables.pop("RDMAV_FORK_SAFE", None)
        return variables | {"NCCL_MIN_NRINGS": "4"}
    variables |= {"FI_PROVIDER": "efa", "RDMAV_FORK_SAFE": "1"}  # this runner sets both for every instance type
    if len(cluster.hosts) == 1:
        return variables | {"SMDATAPARALLEL_USE_SINGLENODE": "1"}
    return variables | {
        "SAGEMAKER_INSTANCE_TYPE": cluster.instance_type,
        "SMDATAPARALLEL_SERVER_ADDR": cluster.main_address,
        "SMDATAPARALLEL_SERVER_PORT": str(SMDDP_SERVER_PORT),
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
    }


def _service_variables(cluster: Cluster, host: str) -> dict[str, str]:
    return {
        "CURRENT_HOST": host,
        "MASTER_ADDR": cluster.main_address,
        "MASTER_PORT": str(cluster.main_port),
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": cluster.network_interface,
        "SAGEMAKER_JOB_NAME": cluster.job_name,
        "SAGEMAKER_REGION": cluster.region,
        "SAGEMAKER_TRAINING_MODULE": TRAINING_MODULE,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(cluster.code), os.environ.get("PYTHONPATH")))),
    }


def _bare(value: object) -> str:
    """The toolkit's text of a variable's value: strings unquoted, others as compact JSON, empty for None."""
    if isinstance(value, str):
        return value
    return "" if value is None else compact(value)


def _torch_version() -> str | None:
    """``torch.__version__`` without importing torch; the metadata of some builds lacks the suffix, such as ``+cu130``."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    written = Path(spec.origin).with_name("version.py")
    found = re.search(r"^__version__ = '(.+)'$", written.read_text(encoding="utf-8") if written.exists() else "", re.M)
    return found[1] if found else None
