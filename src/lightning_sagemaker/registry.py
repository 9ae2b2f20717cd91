# SPDX-License-Identifier: Apache-2.0
"""The table of strategies: name -> factory -> description."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from lightning_sagemaker.collectives import clean_exit
from lightning_sagemaker.rank import announce_rank

if TYPE_CHECKING:
    from lightning_sagemaker._lightning import Registry


class _Entry(NamedTuple):
    name: str
    trainer: str  # module in strategies/, and a name in it
    fabric: str
    description: str
    arguments: dict[str, object]


_SMDDP = "Data parallel with SageMaker's all-reduce library, or with the open shim"
_SMP = "Model parallel as set by SageMaker's mp_parameters: pipeline, tensor and sharded data parallel"
_FSDP = "Sharded data parallel (FSDP2) with SageMaker's AllGather, or with the open shim"
_UNUSED: dict[str, dict[str, object]] = {
    "": {},
    "_find_unused_parameters_false": {"find_unused_parameters": False},
    "_find_unused_parameters_true": {"find_unused_parameters": True},
}


def _with(arguments: dict[str, object]) -> str:
    listed = ", ".join(f"`{name}={value!r}`" for name, value in arguments.items())
    return f", with {listed}" if listed else ""


_STARTED: dict[str, dict[str, object]] = {
    "": {},
    "_spawn": {"start_method": "spawn"},
    "_fork": {"start_method": "fork"},
}
_STARTED["_notebook"] = _STARTED["_fork"]
"""Suffix of a name -> arguments, as Lightning has for "ddp"."""

STRATEGIES = (
    *(
        _Entry(
            f"sagemaker{ending}{unused}",
            "factory.sagemaker_strategy",
            "factory.fabric_sagemaker_strategy",
            "The strategy that the SageMaker job requests and this machine supports" + _with(started | arguments),
            started | arguments,
        )
        for ending, started in _STARTED.items()
        for unused, arguments in _UNUSED.items()
    ),
    _Entry("smddp_fsdp", "fsdp.SMDDPFSDPStrategy", "fsdp.FabricSMDDPFSDPStrategy", _FSDP, {}),
    _Entry("smp", "factory.smp_strategy", "factory.fabric_smp_strategy", _SMP, {}),
    *(
        _Entry(
            f"smddp{ending}{unused}",
            "smddp.SMDDPStrategy",
            "smddp.FabricSMDDPStrategy",
            _SMDDP + _with(started | arguments),
            started | arguments,
        )
        for ending, started in _STARTED.items()
        for unused, arguments in _UNUSED.items()
    ),
)


def register() -> None:
    """Add the strategies to the Trainer's and Fabric's registries. Idempotent.

    Raises:
        NameGone: If the installed Lightning or torch lacks a private name that this package needs.

    """
    from lightning_sagemaker import _lightning
    from lightning_sagemaker._compat import accelerator_connector, names_lightning, names_torch
    from lightning_sagemaker._compat.guard import check

    check(_lightning.with_packages(names_lightning.NAMES))
    check(names_torch.NAMES)
    clean_exit.register()
    for entry in STRATEGIES:
        for registry, home in (
            (_lightning.StrategyRegistry, entry.trainer),
            (_lightning.STRATEGY_REGISTRY, entry.fabric),
        ):
            if _is_free(registry, entry.name):
                registry.register(entry.name, _factory(home), entry.description, override=True, **entry.arguments)
            _give_way(registry)
    for other in _lightning.other_registries():
        for entry in STRATEGIES:
            if _is_free(other, entry.name):
                other.register(entry.name, _refused(entry.name), entry.description, override=True)
    accelerator_connector.take_over(
        *(_factory(f"machine.{name}") for name in ("is_ours", "pass_over", "leaves_mps", "knows_ranks"))
    )
    announce_rank()


def _is_free(registry: Registry, name: str) -> bool:
    """Whether a name is not a script's own: in AWS's images, scripts register ``"smddp"`` by themselves."""
    return name not in registry or registry[name]["strategy"].__module__ == __name__


def _give_way(registry: Registry) -> None:
    """Let scripts register their own strategy under one of these names; Lightning refuses names that are taken."""
    register = registry.register
    if getattr(register, "__module__", None) == __name__:
        return

    @wraps(register)
    def of_script(name: str, *args: Any, **kwargs: Any) -> object:
        if name in registry and _is_free(registry, name):
            registry.remove(name)
        return register(name, *args, **kwargs)

    of_script.__module__ = __name__
    registry.register = of_script  # type: ignore[method-assign]


def _refused(strategy: str) -> Callable[..., NoReturn]:
    """Names the package whose Trainer takes this strategy, where Lightning's other one is loaded as well."""
    from lightning_sagemaker import _lightning

    def refuse(*_: object, **__: object) -> NoReturn:
        raise _lightning.MisconfigurationException(
            f"strategy={strategy!r} was requested from {_lightning.OTHER}, but lightning_sagemaker is built on"
            f" {_lightning.PACKAGE}, which was imported first; they have different classes. HINT: import Trainer, Fabric"
            f" and LightningModule from {_lightning.PACKAGE} alone, or set"
            f" {_lightning.PACKAGE_VARIABLE}={_lightning.OTHER}."
        )

    return refuse


def _factory(home: str) -> Callable[..., Any]:
    """Calls a function of ``strategies/``, and imports it only then: registration happens during imports."""
    module, name = home.split(".")

    def build(*args: object, **kwargs: object) -> object:
        return getattr(import_module(f"lightning_sagemaker.strategies.{module}"), name)(*args, **kwargs)

    return build
