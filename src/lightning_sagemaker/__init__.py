# SPDX-License-Identifier: Apache-2.0
"""SageMaker's distributed strategies for PyTorch Lightning.

``import lightning_sagemaker`` makes the strategies ``"sagemaker"``, ``"smddp"``, ``"smddp_fsdp"`` and ``"smp"`` known to
Lightning's Trainer, and to Fabric. The import itself is light: torch and Lightning are loaded only when one of the names
below is used, or by the script itself, in which case the strategies are registered as soon as Lightning has loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lightning_sagemaker import _on_import

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from lightning_sagemaker.callbacks.auto_resume import AutoResume
    from lightning_sagemaker.callbacks.fabric_loop import InterruptibleLoop
    from lightning_sagemaker.callbacks.heartbeat import Heartbeat
    from lightning_sagemaker.callbacks.interruption import SpotInterruption
    from lightning_sagemaker.callbacks.memory_checkpoint import MemoryCheckpoint
    from lightning_sagemaker.callbacks.metrics import MetricLogger
    from lightning_sagemaker.checkpoint.export import export_huggingface
    from lightning_sagemaker.checkpoint.s3 import S3CheckpointIO
    from lightning_sagemaker.data.even import EvenLoader
    from lightning_sagemaker.data.loader import ResumableLoader
    from lightning_sagemaker.environment import SageMakerEnvironment
    from lightning_sagemaker.job import Distribution, InstanceGroup, Launcher, SageMakerJob, SageMakerJobError
    from lightning_sagemaker.loggers.mlflow_logger import MLflowLogger
    from lightning_sagemaker.loggers.wandb_logger import OfflineWandbLogger
    from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
    from lightning_sagemaker.selection import Selection, select_smddp_backend, select_strategy
    from lightning_sagemaker.strategies.ddp import FabricSageMakerDDPStrategy, SageMakerDDPStrategy
    from lightning_sagemaker.strategies.factory import fabric_sagemaker_strategy, sagemaker_strategy
    from lightning_sagemaker.strategies.fsdp import FabricSMDDPFSDPStrategy, SMDDPFSDPStrategy
    from lightning_sagemaker.strategies.model_parallel import SMPStrategy
    from lightning_sagemaker.strategies.sharded import FabricSMPShardedStrategy, SMPShardedStrategy
    from lightning_sagemaker.strategies.smddp import FabricSMDDPStrategy, SMDDPStrategy

_HOMES = {
    "AutoResume": "callbacks.auto_resume",
    "Distribution": "job",
    "EvenLoader": "data.even",
    "FabricSMDDPFSDPStrategy": "strategies.fsdp",
    "FabricSMDDPStrategy": "strategies.smddp",
    "FabricSMPShardedStrategy": "strategies.sharded",
    "FabricSageMakerDDPStrategy": "strategies.ddp",
    "Heartbeat": "callbacks.heartbeat",
    "InstanceGroup": "job",
    "InterruptibleLoop": "callbacks.fabric_loop",
    "Launcher": "job",
    "MLflowLogger": "loggers.mlflow_logger",
    "OfflineWandbLogger": "loggers.wandb_logger",
    "MemoryCheckpoint": "callbacks.memory_checkpoint",
    "MetricLogger": "callbacks.metrics",
    "ParallelConfigError": "parallel.degrees",
    "ParallelDegrees": "parallel.degrees",
    "ResumableLoader": "data.loader",
    "S3CheckpointIO": "checkpoint.s3",
    "SMDDPFSDPStrategy": "strategies.fsdp",
    "SMDDPStrategy": "strategies.smddp",
    "SMPShardedStrategy": "strategies.sharded",
    "SMPStrategy": "strategies.model_parallel",
    "SageMakerDDPStrategy": "strategies.ddp",
    "SageMakerEnvironment": "environment",
    "SageMakerJob": "job",
    "SageMakerJobError": "job",
    "Selection": "selection",
    "SpotInterruption": "callbacks.interruption",
    "export_huggingface": "checkpoint.export",
    "fabric_sagemaker_strategy": "strategies.factory",
    "sagemaker_strategy": "strategies.factory",
    "select_smddp_backend": "selection",
    "select_strategy": "selection",
}
"""Public name -> the module it is loaded from, when it is first used."""

__all__ = [
    "AutoResume",
    "Distribution",
    "EvenLoader",
    "FabricSMDDPFSDPStrategy",
    "FabricSMDDPStrategy",
    "FabricSMPShardedStrategy",
    "FabricSageMakerDDPStrategy",
    "Heartbeat",
    "InstanceGroup",
    "InterruptibleLoop",
    "Launcher",
    "MLflowLogger",
    "MemoryCheckpoint",
    "MetricLogger",
    "OfflineWandbLogger",
    "ParallelConfigError",
    "ParallelDegrees",
    "ResumableLoader",
    "S3CheckpointIO",
    "SMDDPFSDPStrategy",
    "SMDDPStrategy",
    "SMPShardedStrategy",
    "SMPStrategy",
    "SageMakerDDPStrategy",
    "SageMakerEnvironment",
    "SageMakerJob",
    "SageMakerJobError",
    "Selection",
    "SpotInterruption",
    "export_huggingface",
    "fabric_sagemaker_strategy",
    "sagemaker_strategy",
    "select_smddp_backend",
    "select_strategy",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


_on_import.register_with_lightning()
