# SPDX-License-Identifier: Apache-2.0
"""The table of strategies: name -> what makes it -> one line about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lightning_sagemaker import _lightning
from lightning_sagemaker.environment import announce_rank
from lightning_sagemaker.strategies.fabric import FabricSMDDPStrategy, fabric_sagemaker_strategy
from lightning_sagemaker.strategies.smddp import SMDDPStrategy, sagemaker_strategy


class _Entry(NamedTuple):
    name: str
    trainer: Callable[..., Any]
    fabric: Callable[..., Any]
    description: str
    arguments: dict[str, Any]


_SMDDP = "Data parallel with SageMaker's all-reduce library, or the open shim where that is absent"
_FIND_UNUSED = "find_unused_parameters"

STRATEGIES = (
    _Entry(
        "sagemaker",
        sagemaker_strategy,
        fabric_sagemaker_strategy,
        "What the SageMaker job asked for and this machine can do",
        {},
    ),
    _Entry("smddp", SMDDPStrategy, FabricSMDDPStrategy, _SMDDP, {}),
    *(
        _Entry(
            f"smddp_{_FIND_UNUSED}_{str(value).lower()}",
            SMDDPStrategy,
            FabricSMDDPStrategy,
            f"`smddp` with `{_FIND_UNUSED}={value}`",
            {_FIND_UNUSED: value},
        )
        for value in (False, True)
    ),
)


def register() -> None:
    """Enter the strategies in the Trainer's and Fabric's registries. Idempotent."""
    for entry in STRATEGIES:
        for registry, factory in (
            (_lightning.StrategyRegistry, entry.trainer),
            (_lightning.STRATEGY_REGISTRY, entry.fabric),
        ):
            registry.register(entry.name, factory, entry.description, override=True, **entry.arguments)
    announce_rank()
