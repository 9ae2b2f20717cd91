# SPDX-License-Identifier: Apache-2.0
"""The table of strategies: name -> what makes it -> one line about it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from lightning_sagemaker.collectives import ending
from lightning_sagemaker.rank import announce_rank


class _Entry(NamedTuple):
    name: str
    trainer: str  # module in strategies/, and a name in it
    fabric: str
    description: str
    arguments: dict[str, Any]


_SMDDP = "Data parallel with SageMaker's all-reduce library, or the open shim where that is absent"
_SMP = "Model parallel as SageMaker's mp_parameters say: the layers of a model on several processes"
_FSDP = "Sharded data parallel (FSDP2) with SageMaker's AllGather, or the open shim where that is absent"
_FIND_UNUSED = "find_unused_parameters"

STRATEGIES = (
    _Entry(
        "sagemaker",
        "smddp.sagemaker_strategy",
        "fabric.fabric_sagemaker_strategy",
        "What the SageMaker job asked for and this machine can do",
        {},
    ),
    _Entry("smddp", "smddp.SMDDPStrategy", "fabric.FabricSMDDPStrategy", _SMDDP, {}),
    _Entry("smddp_fsdp", "fsdp.SMDDPFSDPStrategy", "fabric_fsdp.FabricSMDDPFSDPStrategy", _FSDP, {}),
    _Entry("smp", "smp_parameters.smp_strategy", "fabric_smp.fabric_smp_strategy", _SMP, {}),
    *(
        _Entry(
            f"smddp_{_FIND_UNUSED}_{str(value).lower()}",
            "smddp.SMDDPStrategy",
            "fabric.FabricSMDDPStrategy",
            f"`smddp` with `{_FIND_UNUSED}={value}`",
            {_FIND_UNUSED: value},
        )
        for value in (False, True)
    ),
)


def register() -> None:
    """Enter the strategies in the Trainer's and Fabric's registries. Idempotent."""
    from lightning_sagemaker import _lightning
    from lightning_sagemaker._compat import accelerator_connector

    ending.register()
    for entry in STRATEGIES:
        for registry, home in (
            (_lightning.StrategyRegistry, entry.trainer),
            (_lightning.STRATEGY_REGISTRY, entry.fabric),
        ):
            registry.register(entry.name, _factory(home), entry.description, override=True, **entry.arguments)
    accelerator_connector.take_over(
        *(_factory(f"machine.{name}") for name in ("is_ours", "pass_over", "leaves_mps", "knows_ranks"))
    )
    announce_rank()


def _factory(home: str) -> Callable[..., Any]:
    """Calls a function of ``strategies/``, and loads it only then: registering happens in the midst of imports."""
    module, name = home.split(".")

    def build(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(f"lightning_sagemaker.strategies.{module}"), name)(*args, **kwargs)

    return build
