# SPDX-License-Identifier: Apache-2.0
"""Run a job on simulated hosts on this machine, or on SageMaker.

Only :mod:`.request.sdk`, which defines ``SMDDP`` and ``ModelParallel``, and :mod:`.request.offline` import the SageMaker
SDK at module level; no module of this package imports torch or Lightning there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_sagemaker.errors import LaunchError
    from lightning_sagemaker.launch.estimator import Estimator, HuggingFace, PyTorch
    from lightning_sagemaker.launch.request.sdk import SMDDP, ModelParallel
    from lightning_sagemaker.launch.spec.config import JobConfig
    from lightning_sagemaker.launch.spec.groups import InstanceGroup
    from lightning_sagemaker.launch.spec.inputs import FileSystemInput, ShuffleConfig, TrainingInput
    from lightning_sagemaker.launch.spec.vocabulary import TensorBoardOutputConfig
    from lightning_sagemaker.launch.tracking.jobs import TrainingJobs
    from lightning_sagemaker.simulator.cluster import LocalResult, run_local_cluster
    from lightning_sagemaker.simulator.contract import LocalClusterError
    from lightning_sagemaker.simulator.streams import Failure

_HOMES = {
    "Estimator": "launch.estimator",
    "Failure": "simulator.streams",
    "FileSystemInput": "launch.spec.inputs",
    "HuggingFace": "launch.estimator",
    "InstanceGroup": "launch.spec.groups",
    "JobConfig": "launch.spec.config",
    "LaunchError": "errors",
    "LocalClusterError": "simulator.contract",
    "LocalResult": "simulator.cluster",
    "ModelParallel": "launch.request.sdk",
    "PyTorch": "launch.estimator",
    "SMDDP": "launch.request.sdk",
    "ShuffleConfig": "launch.spec.inputs",
    "TensorBoardOutputConfig": "launch.spec.vocabulary",
    "TrainingInput": "launch.spec.inputs",
    "TrainingJobs": "launch.tracking.jobs",
    "run_local_cluster": "launch.simulated",
}
"""Public name -> module below ``lightning_sagemaker`` that it is loaded from when it is first used."""

__all__ = [
    "SMDDP",
    "Estimator",
    "Failure",
    "FileSystemInput",
    "HuggingFace",
    "InstanceGroup",
    "JobConfig",
    "LaunchError",
    "LocalClusterError",
    "LocalResult",
    "ModelParallel",
    "PyTorch",
    "ShuffleConfig",
    "TensorBoardOutputConfig",
    "TrainingInput",
    "TrainingJobs",
    "run_local_cluster",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"lightning_sagemaker.{_HOMES[name]}"), name)
