# SPDX-License-Identifier: Apache-2.0
"""The container of SDK 3's ``ModelTrainer``: what the drivers of ``sagemaker-train`` 1.27.0 set.

The SDK has no configuration for SMDDP. Here ``--distribution smddp`` simulates this package's driver: torchrun, and
``"distribution": "smddp"`` in ``SM_DISTRIBUTED_CONFIG``.
"""

from __future__ import annotations

import json
import os

from lightning_sagemaker.job.intent import SDK_CHANNELS
from lightning_sagemaker.simulator.contract import (
    LOG_LEVEL,
    Cluster,
    Folders,
    fabric_variables,
    input_data_config,
    resource_config,
)

CODE = "input/data/code"
"""Path of the user's code, relative to the host's folder."""


def distributed_config(cluster: Cluster) -> dict[str, object] | None:
    """``SM_DISTRIBUTED_CONFIG``; None without a distribution."""
    count: dict[str, object] = {"process_count_per_node": cluster.processes_per_host}
    return {
        "none": None,
        "mpi": {**count, "mpi_additional_options": None},
        "smddp": {**count, "distribution": "smddp"},
        "smp": {**count, "smp": cluster.hyperparameters.get("mp_parameters")},
    }.get(cluster.distribution, {**count, "smp": None})


def hyperparameters_file(cluster: Cluster) -> dict[str, str]:
    """``hyperparameters.json``: strings as they are, everything else as JSON text."""
    return {name: _bare(value) for name, value in cluster.hyperparameters.items()}


def all_channels(cluster: Cluster) -> tuple[str, ...]:
    """The channels of the job: the user's, and those of the SDK."""
    return (*cluster.channels, *SDK_CHANNELS)


def check(cluster: Cluster) -> str | None:
    """Why these drivers cannot run the job, with a hint; None if they can."""
    for name, value in cluster.hyperparameters.items():
        if "'" in _bare(value):
            return (
                f"Hyperparameter {name!r} holds a single quote, which makes SDK 3's container fail before it runs the "
                "script."
                " HINT: pass such text in a file."
            )
    for name in cluster.channels:
        if not name.replace(".", "").isidentifier():
            return (
                f"Channel {name!r} does not form a valid variable name, which makes SDK 3's container fail before the "
                "script runs."
                " HINT: use letters, digits and underscores."
            )
    return None


def to_arguments(hyperparameters: dict[str, object]) -> list[str]:
    """Hyperparameters as the drivers' arguments: two dashes, in the given order, values as in the file."""
    return [part for name, value in hyperparameters.items() for part in (f"--{name}", _bare(value))]


def host_environment(cluster: Cluster, host: str, folders: Folders) -> dict[str, str]:
    """Variables that ``sm_train.sh`` and the service set on ``host`` before any driver runs."""
    channels = all_channels(cluster)
    paths = {name: str(folders.data / name) for name in cluster.channels}
    paths |= {"code": str(cluster.code), "sm_drivers": str(folders.data / "sm_drivers")}
    hyperparameters = dict(cluster.hyperparameters)
    shared: dict[str, object] = {
        "current_host": host,
        "current_instance_type": cluster.instance_type,
        "hosts": list(cluster.hosts),
        "master_addr": cluster.main_address,
        "master_port": cluster.main_port,
        "input_data_config": input_data_config(channels),
        "input_config_dir": str(folders.config),
        "input_data_dir": str(folders.data),
        "input_dir": str(folders.base / "input"),
        "log_level": LOG_LEVEL,
        "model_dir": str(folders.base / "model"),
        "network_interface_name": cluster.network_interface,
        "num_cpus": os.cpu_count() or 1,
        "num_gpus": cluster.gpus_per_host,
        "num_neurons": 0,
        "output_data_dir": str(folders.base / "output" / "data"),
        "resource_config": resource_config(cluster, host),
    }
    summary = {"channel_input_dirs": paths, "hyperparameters": hyperparameters, "job_name": cluster.job_name, **shared}
    variables: dict[str, object] = {f"SM_{name.upper()}": value for name, value in shared.items()}
    variables |= {
        "SM_CHANNELS": list(channels),
        "SM_CURRENT_HOST_RANK": cluster.hosts.index(host),
        "SM_ENTRY_SCRIPT": cluster.entry_point,
        "SM_HOST_COUNT": len(cluster.hosts),
        "SM_HPS": hyperparameters,
        "SM_OUTPUT_DIR": str(folders.base / "output"),
        "SM_OUTPUT_FAILURE": str(folders.failure),
        "SM_SOURCE_DIR": str(cluster.code),
        "SM_TRAINING_ENV": summary,
    }
    config = distributed_config(cluster)
    if config is not None:
        variables["SM_DISTRIBUTED_CONFIG"] = config
        variables["SM_DISTRIBUTED_DRIVER_DIR"] = str(folders.data / "sm_drivers" / "distributed_drivers")
    variables |= {f"SM_CHANNEL_{name.upper()}": path for name, path in paths.items()}
    variables |= {f"SM_HP_{name.upper().replace('-', '_')}": value for name, value in hyperparameters.items()}
    return {name: _bare(value) for name, value in variables.items()}


def launcher_environment(cluster: Cluster) -> dict[str, str]:
    """Variables that the driver of this distribution adds."""
    if cluster.distribution == "none":
        return {}
    variables = {"NCCL_PROTO": "simple", "NCCL_SOCKET_IFNAME": cluster.network_interface, **fabric_variables(cluster)}
    if cluster.distribution == "mpi":
        variables.pop("RDMAV_FORK_SAFE", None)
    return variables


def _bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
