# SPDX-License-Identifier: Apache-2.0
"""Replaces SDK 3's start script if the SDK is not installed: unpacks the source, sets variables, starts the driver.

A separate program, run as a simulated container's first process. The variables are those of
:mod:`~lightning_sagemaker.simulator.containers.modeltrainer`, which tests compare with the SDK's scripts.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from lightning_sagemaker.job.intent import SDK_CHANNELS
from lightning_sagemaker.simulator.containers import modeltrainer
from lightning_sagemaker.simulator.contract import MASTER_PORT, Cluster, Folders

DRIVERS = "input/data/sm_drivers"


def main(base: str, entry_script: str) -> None:
    """Set up the source and the variables, and replace this process by the driver.

    Args:
        base: The host's folder, ``/opt/ml`` in a container.
        entry_script: Path of the script in the source archive, which is the only file of its channel.

    """
    folders = Folders(Path(base))
    code, drivers = folders.base / modeltrainer.CODE, folders.base / DRIVERS / "distributed_drivers"
    for archive in code.glob("*.tar.gz"):
        shutil.unpack_archive(archive, code)  # trusted: this process's parent has just created it
    resources = _read(folders.config / "resourceconfig.json")
    config = _read(folders.base / DRIVERS / "distributed.json")
    channels = [name for name in _read(folders.config / "inputdataconfig.json") if name not in SDK_CHANNELS]
    cluster = Cluster(
        job_name=os.environ["TRAINING_JOB_NAME"],
        hosts=tuple(resources["hosts"]),
        processes_per_host=1,
        distribution="none",
        contract="modeltrainer",
        instance_type=resources["current_instance_type"],
        network_interface=resources["network_interface_name"],
        main_address="algo-1",
        main_port=MASTER_PORT,
        entry_point=entry_script,
        arguments=(),
        code=code,
        hyperparameters={name: _decoded(text) for name, text in _read(folders.config / "hyperparameters.json").items()},
        channels=tuple(channels),
        gpus_per_host=len([one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]),
        region=os.environ["AWS_REGION"],
    )
    variables = modeltrainer.host_environment(cluster, resources["current_host"], folders)
    variables["SM_RESOURCE_CONFIG"] = json.dumps(resources)  # of all instance groups
    variables["SM_DISTRIBUTED_CONFIG"] = json.dumps(config)
    variables["SM_DISTRIBUTED_DRIVER_DIR"] = str(drivers)
    os.environ.update(variables)
    os.chdir(code)
    driver = str(drivers / "lightning_driver.py")
    os.execv(sys.executable, [sys.executable, driver])


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
