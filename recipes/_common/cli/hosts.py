# SPDX-License-Identifier: Apache-2.0
"""Checks that the hosts of a command line can find each other."""

from __future__ import annotations

import os

from lightning.fabric.plugins.environments import LSFEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker import Launcher, SageMakerJob

_CLUSTERS = (SLURMEnvironment, LSFEnvironment, TorchElasticEnvironment)
_BY_HAND = ("MASTER_ADDR", "NODE_RANK", "GROUP_RANK", "RANK", "LOCAL_RANK")


def check_num_nodes(job: SageMakerJob, num_nodes: int) -> None:
    """Refuse several hosts without a job, cluster or launcher: Lightning would wait for them for half an hour.

    Args:
        job: The job as read from the environment.
        num_nodes: Number of hosts as set.

    Raises:
        MisconfigurationException: If ``num_nodes`` is above 1 and nothing says where the other hosts are.

    """
    known = job.in_container or job.launcher is not Launcher.NONE or any(name in os.environ for name in _BY_HAND)
    if num_nodes > 1 and not known and not any(cluster.detect() for cluster in _CLUSTERS):
        raise MisconfigurationException(
            f"num_nodes={num_nodes} was set, but nothing says where the other hosts are: there is no job, no launcher and no"
            " MASTER_ADDR. HINT: leave --num_nodes out; or rehearse with `lightning-sagemaker local --hosts"
            f" {num_nodes}`; or start torchrun on each host."
        )
