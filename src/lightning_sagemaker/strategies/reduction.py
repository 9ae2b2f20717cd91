# SPDX-License-Identifier: Apache-2.0
"""How the gradients of a data parallel strategy are reduced, for the Trainer and Fabric."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker._lightning import MisconfigurationException, rank_zero_info
from lightning_sagemaker.collectives.agreement import of_all
from lightning_sagemaker.collectives.reduction.engine import Engine
from lightning_sagemaker.collectives.reduction.hook import attach
from lightning_sagemaker.collectives.reduction.low_rank import LowRankReducer
from lightning_sagemaker.collectives.reduction.options import ReductionOptions
from lightning_sagemaker.collectives.reduction.plan import FLAT
from lightning_sagemaker.collectives.reduction.topology import Groups, Topology

OPTIONS = ("gradient_reduction", "gradient_compression", "powersgd_rank", "powersgd_start")
KEY = "gradient_reduction"
"""Of a checkpoint."""


class _WithOptions:
    """Mixin before a ``DDPStrategy``: its gradients are reduced in the way that was asked for.

    Args:
        gradient_reduction: ``"flat"``: by DDP's own all-reduce; ``"hierarchical"``: within hosts, between hosts, within
            hosts; ``"auto"``: by what is fastest in a measurement of about two seconds.
        gradient_compression: What is sent: ``"bf16"`` or ``"fp16"`` numbers, or matrices of low rank (``"powersgd"``).
        powersgd_rank: Of these matrices; 4 if None.
        powersgd_start: Optimizer steps that are exact before they are sent; 1000 if None.
        **kwargs: Those of the strategy.

    Raises:
        MisconfigurationException: If they do not go together, or with the strategy's other arguments.

    """

    root_device: torch.device
    node_rank: int
    world_size: int
    _timeout: Any

    def __init__(
        self,
        *args: Any,
        gradient_reduction: str = FLAT,
        gradient_compression: str | None = None,
        powersgd_rank: int | None = None,
        powersgd_start: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._reduction = ReductionOptions(gradient_reduction, gradient_compression, powersgd_rank, powersgd_start)
        self._reduction.check_beside(kwargs)
        self._groups: Groups | None = None
        self._engine: Engine | None = None
        self._before: dict[str, Any] = {}
        super().__init__(*args, **kwargs)

    def setup_environment(self) -> None:
        """Called in each process before it does anything; makes the process group.

        Raises:
            MisconfigurationException: If gradients of this precision cannot be compressed so.

        """
        plugin = getattr(self, "precision_plugin", None) or getattr(self, "precision", None)
        self._reduction.check_precision(getattr(plugin, "precision", None))
        super().setup_environment()  # type: ignore[misc]

    def _reduced(self, model: Any) -> Any:
        """A wrapper, which reduces as was asked from now on. Collective over all ranks."""
        if self._reduction.is_default or not isinstance(model, DistributedDataParallel):
            return model
        if self._groups is None or not self._groups.is_current:
            backend = "nccl" if self.root_device.type == "cuda" else "gloo"
            self._groups = Groups(Topology.of(of_all(self.node_rank, self.world_size)), backend, self._timeout)
        size = sum(parameter.nbytes for parameter in _trained(model))
        self._engine = Engine(self._reduction, self._groups, self.root_device, size, self._before)
        rank_zero_info(f"Gradients are reduced: {self._engine.plan.words}. {self._engine.reason}")
        if self._engine.reducer is not None:
            attach(model, self._engine.reducer)
        return model


class ReducedGradients(_WithOptions):
    """The Trainer's; a checkpoint has what was chosen, and what PowerSGD has not sent yet."""

    model: Any

    def _setup_model(self, model: Any) -> Any:
        wrapped = self._reduced(super()._setup_model(model))  # type: ignore[misc]
        reducer = self._engine.reducer if self._engine is not None else None
        if isinstance(reducer, LowRankReducer) and "powersgd" in self._before:
            if reducer.load_state_dict(self._before["powersgd"], _trained(wrapped)):
                return wrapped
            rank_zero_info("PowerSGD begins anew: its errors in the checkpoint are of a model with other parameters.")
        return wrapped

    def save_checkpoint(self, checkpoint: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint; called on all processes."""
        if self._engine is not None and checkpoint.get("optimizer_states"):  # one of the weights alone resumes nothing
            checkpoint[KEY] = self._engine.as_dict()
            if isinstance(self._engine.reducer, LowRankReducer):
                checkpoint[KEY]["powersgd"] = self._engine.reducer.state_dict(_trained(self.model))
        super().save_checkpoint(checkpoint, *args, **kwargs)  # type: ignore[misc]

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Read a checkpoint; called on all processes."""
        found = super().load_checkpoint(*args, **kwargs)  # type: ignore[misc]
        self._before = found.get(KEY) or {}
        return found


class FabricReducedGradients(_WithOptions):
    """Fabric's."""

    def setup_module(self, module: Any) -> Any:
        """The module in its wrapper."""
        return self._reduced(super().setup_module(module))  # type: ignore[misc]


def refuse_beside_recovery(arguments: dict[str, Any]) -> None:
    """See that a strategy that recovers in the job, whose groups come and go, is given none of the options.

    Args:
        arguments: As given; the options are taken out.

    Raises:
        MisconfigurationException: If one differs from its default.

    """
    given = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
    wanted = {name: value for name, value in given.items() if value not in (None, FLAT)}
    if wanted:
        listed = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        raise MisconfigurationException(
            f"{listed} was set, but the training recovers in the job (recovery='in_job'), and reduces gradients in its own"
            " way. HINT: set recovery='restart', or leave the option out."
        )


def _trained(model: Any) -> list[torch.Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
