# SPDX-License-Identifier: Apache-2.0
"""Strategies that have a counterpart that recovers in the job, which is created instead if that is requested."""

from __future__ import annotations

from abc import ABCMeta
from importlib import import_module
from typing import TypeVar

import torch

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.supervised import recovers_in_job
from lightning_sagemaker.strategies.reduction import refuse_with_recovery

T = TypeVar("T")


class RecoversIfRequested(ABCMeta):
    """Creates a strategy that recovers in the job instead, if that is requested.

    Not in ``__new__``: copying and unpickling call that without the arguments, which decide whether recovery is possible;
    and LightningCLI may take its parameters for those of the class.
    """

    def __call__(cls: type[T], *args: object, recovery: str | None = None, **kwargs: object) -> T:
        """Create a strategy.

        Raises:
            MisconfigurationException: If recovery in the job does not support the requested gradient reduction.
            RecoveryError: If recovery in the job is requested, and this class or layout does not support it.

        """
        given = kwargs if recovery is None else {**kwargs, "recovery": recovery}
        if getattr(cls, "recovers", False) or not recovers_in_job(recovery) or _obstacle(cls, recovery, args, kwargs):
            made: T = ABCMeta.__call__(cls, *args, **given)
            return made
        # By name, as in the factory: that strategy's module imports this one.
        module, name = str(getattr(cls, "recovering", "")).split(".")
        made = getattr(import_module(f"lightning_sagemaker.strategies.{module}"), name)(*args, **kwargs)
        made.is_asked = recovery is not None  # type: ignore[attr-defined]
        made.created_as = cls  # type: ignore[attr-defined]
        return made

    def __instancecheck__(cls, instance: object) -> bool:
        """True also for the strategy that was created instead."""
        return super().__instancecheck__(instance) or issubclass(getattr(instance, "created_as", object), cls)


def _obstacle(cls: type, recovery: str | None, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    """Why all ranks are restarted instead, which is logged; empty if recovery in the job is possible."""
    if cls.__module__.startswith("lightning_sagemaker."):
        why: str = cls.obstacle(args, kwargs)  # type: ignore[attr-defined]
    else:
        why = f"{cls.__name__} is a strategy of this script's own, which would lose its overrides"
    if why and recovery == "in_job":
        raise RecoveryError(
            f"recovery='in_job' was set, but {why}. HINT: leave it out: under supervise all ranks are then restarted when"
            " one is lost."
        )
    if why:
        rank_zero_info(f"When a rank is lost, all ranks are restarted: {why}.")
    return why


class MayRecover(metaclass=RecoversIfRequested):
    """A Trainer's strategy that has a counterpart that recovers."""

    recovering = "in_job.InJobDDPStrategy"
    """Module of this folder, and the class in it that recovers in the job."""

    def __init__(self, *args: object, recovery: str | None = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)

    @classmethod
    def obstacle(cls, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        """Why the counterpart cannot be created with these arguments; empty if it can.

        Args:
            args: Arguments of the strategy.
            kwargs: Keyword arguments of the strategy.

        Raises:
            MisconfigurationException: If the counterpart does not support the requested gradient reduction.

        """
        refuse_with_recovery(kwargs)
        return ""


class FabricMayRecover(MayRecover):
    """A Fabric strategy that has a counterpart that recovers."""

    recovering = "fabric_in_job.FabricInJobDDPStrategy"


class ReplicasMayRecover(MayRecover):
    """A strategy that shards parameters: replicas of the shards recover from each other."""

    recovering = "in_job_fsdp.InJobFSDPStrategy"
    degrees: ParallelDegrees
    job: SageMakerJob

    @classmethod
    def obstacle(cls, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        """As in :class:`MayRecover`, except for the degrees, which are known once the strategy is created."""
        found: str = ABCMeta.__call__(cls, *args, **kwargs)._obstacle
        return found

    @property
    def _obstacle(self) -> str:
        from lightning_sagemaker._compat.fsdp_groups import CAN_BEGIN_AGAIN

        degrees, world = self.degrees, self.job.world_size or 1
        if degrees.tensor > 1:
            return (
                f"tensor_parallel_degree={degrees.tensor} was set, with which replicas do not recover from each other"
            )
        if degrees.shard == 1 or degrees.shards(world) == world:
            return "there is one replica of the model (hybrid_shard_degree), so no other one has a lost rank's shards"
        if getattr(self, "async_checkpoint", False):
            return "async_checkpoint=True was set, whose writes need all ranks"
        if not CAN_BEGIN_AGAIN:
            return f"torch {torch.__version__} cannot resume FSDP after a failed step (2.13 can)"
        return ""
