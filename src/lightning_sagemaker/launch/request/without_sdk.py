# SPDX-License-Identifier: Apache-2.0
"""Rehearsals without the SageMaker SDK: this package's own request, and a stand-in for the SDK's start script."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.request.create import create_request, default_bucket, driver_config

_CONTAINER = Path(__file__).parents[2] / "container"

_START = """#!/bin/bash
exec {python} -m lightning_sagemaker.simulator.start_script /opt/ml {entry}
"""


def sent_request(plan: JobPlan, store: Path) -> dict[str, Any]:
    """The request, with the source and the scripts that start it copied to ``store``.

    Args:
        plan: The job.
        store: Folder for the objects, as ``store/BUCKET/KEY``.

    """
    request = create_request(plan, f"{plan.base_name}-rehearsal", default_bucket(plan.region))
    places = {one["ChannelName"]: _place(one, store) for one in request["InputDataConfig"]}
    places["code"].parent.mkdir(parents=True)
    plan.bundle.write(places["code"].parent)
    drivers = places["sm_drivers"]
    drivers.mkdir(parents=True)
    shutil.copytree(_CONTAINER, drivers / "distributed_drivers", ignore=shutil.ignore_patterns("__pycache__"))
    (drivers / "distributed.json").write_text(json.dumps(driver_config(plan)))
    start = _START.format(python=shlex.quote(sys.executable), entry=shlex.quote(plan.bundle.entry_script))
    (drivers / "sm_train.sh").write_text(start)
    return request


def _place(channel: dict[str, Any], store: Path) -> Path:
    source = channel["DataSource"].get("S3DataSource", {})
    return store / str(source.get("S3Uri", "")).removeprefix("s3://")


def fetch_from(store: Path) -> Callable[[str, Path], None]:
    """A function that copies from ``store``, for :func:`~lightning_sagemaker.simulator.request_runner.run_request`."""

    def fetch(uri: str, folder: Path) -> None:
        source = store / uri.removeprefix("s3://")
        if source.is_dir():
            shutil.copytree(source, folder, dirs_exist_ok=True)
        else:
            shutil.copy(source, folder)

    return fetch
