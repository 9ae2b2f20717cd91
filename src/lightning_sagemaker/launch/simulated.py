# SPDX-License-Identifier: Apache-2.0
"""Checks the instance type of a simulated job, of which the simulator has no table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.planning.instances import find_instance
from lightning_sagemaker.simulator import cluster
from lightning_sagemaker.simulator.cluster import LocalResult
from lightning_sagemaker.simulator.contract import LocalClusterError

P = ParamSpec("P")


def _checked(run: Callable[P, LocalResult]) -> Callable[P, LocalResult]:
    @functools.wraps(run)
    def checks(*arguments: P.args, **options: P.kwargs) -> LocalResult:
        if "instance_type" in options:
            try:
                find_instance(str(options["instance_type"]))
            except LaunchError as error:
                raise LocalClusterError(str(error)) from None
        return run(*arguments, **options)

    return checks


run_local_cluster = _checked(cluster.run_local_cluster)
