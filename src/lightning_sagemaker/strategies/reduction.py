# SPDX-License-Identifier: Apache-2.0
"""Configures how the gradients of a data parallel strategy are reduced, for the Trainer and Fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker._compat.param_groups import parameters_in
from lightning_sagemaker._lightning import MisconfigurationException, rank_zero_info, rank_zero_warn
from lightning_sagemaker.collectives.agreement import of_all
from lightning_sagemaker.collectives.reduction.engine import Engine
from lightning_sagemaker.collectives.reduction.hook import attach
from lightning_sagemaker.collectives.reduction.low_rank import LowRankReducer
from lightning_sagemaker.collectives.reduction.options import ReductionOptions
from lightning_sagemaker.collectives.reduction.plan import FLAT
from lightning_sagemaker.collectives.reduction.topology import Groups, Topology
from lightning_sagemaker.strategies.host import Host

if TYPE_CHECKING:
    from lightning_sagemaker._lightning import DDPStrategy as TrainerHost
    from lightning_sagemaker._lightning import FabricDDPStrategy as FabricHost
    from lightning_sagemaker._types import Checkpoint
else:
    TrainerHost = FabricHost = object

OPTIONS = ("gradient_reduction", "gradient_compression", "powersgd_rank", "powersgd_start")
KEY = "gradient_reduction"
"""Key in a checkpoint."""


M = TypeVar("M", bound=nn.Module)


class _WithOptions(Host):
    """Mixin before a ``DDPStrategy``: its gradients are reduced as configured.

    Args:
        gradient_reduction: ``"flat"``: DDP's own all-reduce; ``"hierarchical"``: within hosts, between hosts, within
            hosts; ``"auto"``: the fastest in a measurement of about two seconds.
        gradient_compression: ``"bf16"``, ``"fp16"``, or low-rank matrices (``"powersgd"``); None for no compression.
        powersgd_rank: Rank of PowerSGD's matrices; 4 if None.
        powersgd_start: Exact optimizer steps before PowerSGD starts; 1000 if None.
        **kwargs: Arguments of the strategy.

    Raises:
        MisconfigurationException: If these options contradict each other, or the strategy's other arguments.

    """

    def __init__(
        self,
        *args: object,
        gradient_reduction: str = FLAT,
        gradient_compression: str | None = None,
        powersgd_rank: int | None = None,
        powersgd_start: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._reduction = ReductionOptions(gradient_reduction, gradient_compression, powersgd_rank, powersgd_start)
        self._reduction.check_other_arguments(kwargs)
        self._groups: Groups | None = None
        self._engine: Engine | None = None
        self._before: Checkpoint = {}
        super().__init__(*args, **kwargs)

    def setup_environment(self) -> None:
        """Called first in each process; creates the process group.

        Raises:
            MisconfigurationException: If gradients of this precision cannot be compressed this way.

        """
        plugin = getattr(self, "precision_plugin", None) or getattr(self, "precision", None)
        self._reduction.check_precision(getattr(plugin, "precision", None))
        super().setup_environment()

    def _reduced(self, model: M) -> M:
        """Configure a wrapper's gradient reduction. Collective over all ranks."""
        if self._reduction.is_default or not isinstance(model, DistributedDataParallel):
            return model
        if self._groups is None or not self._groups.is_current:
            backend = "nccl" if self.root_device.type == "cuda" else "gloo"
            self._groups = Groups(Topology.of(of_all(self.node_rank, self.world_size)), backend, self._timeout)
        size = sum(parameter.nbytes for parameter in _trained(model))
        self._engine = Engine(self._reduction, self._groups, self.root_device, size, self._before)
        rank_zero_info(f"Gradient reduction: {self._engine.plan.description}. {self._engine.reason}")
        if self._engine.reducer is not None:
            attach(model, self._engine.reducer)
        return model


class ReducedGradients(_WithOptions, TrainerHost):
    """For the Trainer; checkpoints contain the selected algorithm, and PowerSGD's error buffers."""

    _looked_in: int | None = None
    """Epoch."""

    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        self._known = set(_trained(model))
        wrapped = self._reduced(super()._setup_model(model))
        reducer = self._engine.reducer if self._engine is not None else None
        if isinstance(reducer, LowRankReducer) and "powersgd" in self._before:
            if reducer.load_state_dict(self._before["powersgd"], _trained(wrapped)):
                return wrapped
            rank_zero_info(
                "PowerSGD state is reset: the error buffers in the checkpoint belong to a model with other parameters."
            )
        return wrapped

    def pre_backward(self, closure_loss: torch.Tensor) -> None:
        """Called before each backward pass; once in an epoch it looks for weights that the ranks do not share."""
        super().pre_backward(closure_loss)
        assert self.lightning_module is not None
        epoch = self.lightning_module.trainer.current_epoch
        if epoch != self._looked_in and isinstance(self.model, DistributedDataParallel):
            self._looked_in = epoch
            self._warn_of_unreduced(self.lightning_module)

    def _warn_of_unreduced(self, module: nn.Module) -> None:
        stepped = {one for optimizer in self.optimizers for one in parameters_in(optimizer.param_groups)}
        named = {name: one for name, one in module.named_parameters() if one.requires_grad and one in stepped}
        if unknown := [name for name, one in named.items() if one not in self._known]:
            self._known |= stepped
            more = f" and {len(unknown) - 1} other parameters" if unknown[1:] else ""
            rank_zero_warn(
                f"{unknown[0]!r}{more} did not require gradients when DDP wrapped the module, so these gradients are not"
                " averaged: each rank trains weights of its own, and a checkpoint has rank zero's. HINT: give layers that"
                " are trained later a learning rate of 0 until then, or freeze them in on_fit_start, with"
                " find_unused_parameters=True."
            )

    def save_checkpoint(self, checkpoint: Checkpoint, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint; called on all processes."""
        if self._engine is not None and checkpoint.get("optimizer_states"):  # not in a checkpoint of weights only
            checkpoint[KEY] = self._engine.as_dict()
            if isinstance(self._engine.reducer, LowRankReducer):
                assert self.model is not None
                checkpoint[KEY]["powersgd"] = self._engine.reducer.state_dict(_trained(self.model))
        super().save_checkpoint(checkpoint, *args, **kwargs)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Checkpoint:
        """Read a checkpoint; called on all processes."""
        found = super().load_checkpoint(*args, **kwargs)
        self._before = found.get(KEY) or {}
        return found


class FabricReducedGradients(_WithOptions, FabricHost):
    """Fabric's."""

    def setup_module(self, module: nn.Module) -> DistributedDataParallel:
        """Wrap the module."""
        return self._reduced(super().setup_module(module))


def refuse_with_recovery(arguments: dict[str, object]) -> None:
    """Raise if options are set for a strategy that recovers in the job, whose process groups are recreated.

    Args:
        arguments: Arguments of the strategy; the options are removed.

    Raises:
        MisconfigurationException: If one differs from its default.

    """
    given = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
    wanted = {name: value for name, value in given.items() if value not in (None, FLAT)}
    if wanted:
        listed = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        raise MisconfigurationException(
            f"{listed} was set, but recovery='in_job' reduces gradients in its own way. HINT: set recovery='restart', "
            "or leave the option out."
        )


def _trained(model: nn.Module) -> list[torch.Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
