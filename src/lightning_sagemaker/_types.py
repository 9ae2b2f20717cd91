# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: TC004
"""Types for annotations; to be imported under ``TYPE_CHECKING`` only.

A type checker sees ``lightning``'s classes, whichever of the two packages a process builds on (``_lightning.py``): they have
the same attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any, TypeAlias

    from lightning.fabric import Fabric
    from lightning.fabric.plugins import CheckpointIO
    from lightning.fabric.plugins.precision import Precision as FabricPrecision
    from lightning.fabric.strategies import Strategy as FabricStrategy
    from lightning.fabric.wrappers import _FabricDataLoader as FabricDataLoader
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.core.optimizer import LightningOptimizer
    from lightning.pytorch.loggers import CSVLogger, Logger
    from lightning.pytorch.loops.fetchers import _DataFetcher as DataFetcher
    from lightning.pytorch.loops.fit_loop import _FitLoop as FitLoop
    from lightning.pytorch.loops.progress import _ProcessedTracker as ProcessedTracker
    from lightning.pytorch.loops.progress import _ReadyCompletedTracker as ReadyCompletedTracker
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop as TrainingEpochLoop
    from lightning.pytorch.plugins.precision import Precision
    from lightning.pytorch.strategies import Strategy
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection as ResultCollection
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric as ResultMetric
    from lightning.pytorch.utilities.combined_loader import CombinedLoader
    from lightning.pytorch.utilities.types import STEP_OUTPUT as StepOutput
    from torch._C._distributed_c10d import AllreduceOptions
    from torch._C._distributed_c10d import Backend as TorchBackend
    from torch._C._distributed_c10d import _DistributedBackendOptions as BackendOptions
    from torch.serialization import MAP_LOCATION as MapLocation

    PathLike: TypeAlias = str | Path
    """A place in the file system, or an address."""
    StateDict: TypeAlias = dict[str, object]
    """State of an object, which only its owner looks into."""
    Checkpoint: TypeAlias = dict[str, Any]
    """Content of a checkpoint of Lightning, as its hooks are given it: nested, each entry with a form of its own."""
    Options: TypeAlias = Mapping[str, object]
    """Keyword arguments that are handed on."""

__all__ = [
    "AllreduceOptions",
    "BackendOptions",
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "CheckpointIO",
    "CombinedLoader",
    "DataFetcher",
    "Fabric",
    "FabricDataLoader",
    "FabricPrecision",
    "FabricStrategy",
    "FitLoop",
    "LightningDataModule",
    "LightningModule",
    "LightningOptimizer",
    "Logger",
    "MapLocation",
    "Options",
    "PathLike",
    "Precision",
    "ProcessedTracker",
    "ReadyCompletedTracker",
    "ResultCollection",
    "ResultMetric",
    "StateDict",
    "StepOutput",
    "Strategy",
    "TorchBackend",
    "Trainer",
    "TrainingEpochLoop",
]
