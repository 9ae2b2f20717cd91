# SPDX-License-Identifier: Apache-2.0
"""The one place that chooses between ``lightning`` and ``pytorch_lightning``.

The two packages hold different copies of the same classes: a strategy derived from one is refused by the other's
Trainer. Whichever the script imported first is the one this package builds on; :data:`PACKAGE_VARIABLE` overrides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

PACKAGE_VARIABLE = "LIGHTNING_SAGEMAKER_PACKAGE"
"""``lightning`` or ``pytorch_lightning``: which of them to build on when both are imported."""


def chosen_package() -> str:
    """``"lightning"`` or ``"pytorch_lightning"``.

    Raises:
        ValueError: If :data:`PACKAGE_VARIABLE` holds any other name.

    """
    name = os.environ.get(PACKAGE_VARIABLE)
    if name is None:
        only_old = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
        return "pytorch_lightning" if only_old else "lightning"
    if name not in ("lightning", "pytorch_lightning"):
        raise ValueError(
            f"{PACKAGE_VARIABLE}={name!r} is not a Lightning package."
            " HINT: set it to 'lightning' or 'pytorch_lightning', or unset it."
        )
    return name


PACKAGE = chosen_package()
OTHER = "lightning" if PACKAGE == "pytorch_lightning" else "pytorch_lightning"
"""The one that this package is not built on."""

_ROOTS = {
    "lightning": ("lightning.pytorch", "lightning.fabric"),
    "pytorch_lightning": ("pytorch_lightning", "lightning_fabric"),
}


def with_packages(names: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """A table of names in which ``{pytorch}`` and ``{fabric}`` are the packages that this one builds on."""
    pytorch, fabric = _ROOTS[PACKAGE]
    return {owner.format(pytorch=pytorch, fabric=fabric): found for owner, found in names.items()}


class Registry(Protocol):
    """A registry of strategies."""

    def register(
        self, name: str, strategy: Callable[..., object], description: str | None = None, override: bool = False
    ) -> object: ...

    def remove(self, name: str) -> None: ...

    def __contains__(self, name: object) -> bool: ...

    def __getitem__(self, name: str) -> dict[str, object]: ...


def other_registries() -> list[Registry]:
    """The registries of the Trainer and of Fabric in :data:`OTHER`, if it is loaded too."""
    pytorch, fabric = (sys.modules.get(f"{root}.strategies") for root in _ROOTS[OTHER])
    found = getattr(pytorch, "StrategyRegistry", None), getattr(fabric, "STRATEGY_REGISTRY", None)
    return [registry for registry in found if registry is not None]


if TYPE_CHECKING:
    from lightning.fabric.loggers.csv_logs import _ExperimentWriter as CSVWriter
    from lightning.fabric.plugins.environments import (
        ClusterEnvironment,
        LightningEnvironment,
        MPIEnvironment,
        TorchElasticEnvironment,
    )
    from lightning.fabric.plugins.environments.lightning import find_free_network_port
    from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
    from lightning.fabric.strategies import STRATEGY_REGISTRY
    from lightning.fabric.strategies import DDPStrategy as FabricDDPStrategy
    from lightning.fabric.strategies import ModelParallelStrategy as FabricModelParallelStrategy
    from lightning.fabric.utilities import move_data_to_device
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.fabric.utilities.seed import reset_seed
    from lightning.fabric.wrappers import _FabricDataLoader as FabricDataLoader
    from lightning.pytorch import LightningDataModule, LightningModule
    from lightning.pytorch import callbacks as pytorch_callbacks
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    from lightning.pytorch.loggers.logger import Logger
    from lightning.pytorch.plugins.precision import Precision
    from lightning.pytorch.profilers import Profiler
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, StrategyRegistry
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities.grads import grad_norm
    from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

    _P = ParamSpec("_P")
    _T = TypeVar("_T")

    class _RankZeroOnly(Protocol):
        rank: int

        def __call__(self, fn: Callable[_P, _T], /) -> Callable[_P, _T | None]: ...

    rank_zero_only: _RankZeroOnly
else:
    _pytorch, _fabric = _ROOTS[PACKAGE]

    def _get(module, *names):
        loaded = import_module(module)
        return tuple(getattr(loaded, name) for name in names)

    ClusterEnvironment, LightningEnvironment, MPIEnvironment, TorchElasticEnvironment = _get(
        f"{_fabric}.plugins.environments",
        "ClusterEnvironment",
        "LightningEnvironment",
        "MPIEnvironment",
        "TorchElasticEnvironment",
    )
    (CSVWriter,) = _get(f"{_fabric}.loggers.csv_logs", "_ExperimentWriter")
    (find_free_network_port,) = _get(f"{_fabric}.plugins.environments.lightning", "find_free_network_port")
    STRATEGY_REGISTRY, FabricDDPStrategy, FabricModelParallelStrategy = _get(
        f"{_fabric}.strategies", "STRATEGY_REGISTRY", "DDPStrategy", "ModelParallelStrategy"
    )
    (rank_zero_only,) = _get(f"{_fabric}.utilities.rank_zero", "rank_zero_only")
    (MisconfigurationException,) = _get(f"{_fabric}.utilities.exceptions", "MisconfigurationException")
    (move_data_to_device,) = _get(f"{_fabric}.utilities", "move_data_to_device")
    (FabricDataLoader,) = _get(f"{_fabric}.wrappers", "_FabricDataLoader")
    (reset_seed,) = _get(f"{_fabric}.utilities.seed", "reset_seed")
    (CheckpointIO,) = _get(f"{_fabric}.plugins.io.checkpoint_io", "CheckpointIO")
    (TorchCheckpointIO,) = _get(f"{_fabric}.plugins.io.torch_io", "TorchCheckpointIO")
    Callback, ModelCheckpoint = _get(f"{_pytorch}.callbacks", "Callback", "ModelCheckpoint")
    LightningDataModule, LightningModule = _get(_pytorch, "LightningDataModule", "LightningModule")
    (Logger,) = _get(f"{_pytorch}.loggers.logger", "Logger")
    pytorch_callbacks = import_module(f"{_pytorch}.callbacks")
    (Precision,) = _get(f"{_pytorch}.plugins.precision", "Precision")
    (Profiler,) = _get(f"{_pytorch}.profilers", "Profiler")
    (TrainerFn,) = _get(f"{_pytorch}.trainer.states", "TrainerFn")
    DDPStrategy, ModelParallelStrategy, StrategyRegistry = _get(
        f"{_pytorch}.strategies", "DDPStrategy", "ModelParallelStrategy", "StrategyRegistry"
    )
    (grad_norm,) = _get(f"{_pytorch}.utilities.grads", "grad_norm")
    rank_zero_info, rank_zero_warn = _get(f"{_pytorch}.utilities.rank_zero", "rank_zero_info", "rank_zero_warn")

__all__ = [
    "PACKAGE",
    "STRATEGY_REGISTRY",
    "CSVWriter",
    "Callback",
    "CheckpointIO",
    "ClusterEnvironment",
    "DDPStrategy",
    "FabricDDPStrategy",
    "FabricDataLoader",
    "FabricModelParallelStrategy",
    "LightningDataModule",
    "LightningEnvironment",
    "LightningModule",
    "Logger",
    "MPIEnvironment",
    "MisconfigurationException",
    "ModelCheckpoint",
    "ModelParallelStrategy",
    "Precision",
    "Profiler",
    "StrategyRegistry",
    "TorchCheckpointIO",
    "TorchElasticEnvironment",
    "TrainerFn",
    "find_free_network_port",
    "grad_norm",
    "move_data_to_device",
    "pytorch_callbacks",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "reset_seed",
]
