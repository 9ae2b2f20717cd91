# SPDX-License-Identifier: Apache-2.0
"""Running a job: on simulated hosts here, and on SageMaker.

Nothing in this package imports torch, Lightning or the SageMaker SDK at module level, but :mod:`.sdk` and :mod:`.offline`,
which are the SDK's side; ``SMDDP`` and ``ModelParallel`` come from there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_sagemaker.launch.contract import LocalClusterError
    from lightning_sagemaker.launch.errors import LaunchError
    from lightning_sagemaker.launch.estimator import Estimator, HuggingFace, PyTorch
    from lightning_sagemaker.launch.inputs import FileSystemInput, ShuffleConfig, TrainingInput
    from lightning_sagemaker.launch.job_config import JobConfig
    from lightning_sagemaker.launch.jobs import TrainingJobs
    from lightning_sagemaker.launch.local import LocalResult, run_local_cluster
    from lightning_sagemaker.launch.processes import Failure
    from lightning_sagemaker.launch.sdk import SMDDP, ModelParallel
    from lightning_sagemaker.launch.vocabulary import InstanceGroup, TensorBoardOutputConfig

_HOMES = {
    "Estimator": "estimator",
    "Failure": "processes",
    "FileSystemInput": "inputs",
    "HuggingFace": "estimator",
    "InstanceGroup": "vocabulary",
    "JobConfig": "job_config",
    "LaunchError": "errors",
    "LocalClusterError": "contract",
    "LocalResult": "local",
    "ModelParallel": "sdk",
    "PyTorch": "estimator",
    "SMDDP": "sdk",
    "ShuffleConfig": "inputs",
    "TensorBoardOutputConfig": "vocabulary",
    "TrainingInput": "inputs",
    "TrainingJobs": "jobs",
    "run_local_cluster": "local",
}
"""Public name -> the module it is loaded from, when it is first used."""

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
