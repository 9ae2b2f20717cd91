# SPDX-License-Identifier: Apache-2.0
"""Strategies that have a counterpart that recovers in the job, which is created instead if that is requested."""

from __future__ import annotations

from abc import ABCMeta
from importlib import import_module
from typing import TypeVar

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.recovery.member import RecoveryError
from lightning_sagemaker.recovery.supervised import recovers_in_job
from lightning_sagemaker.strategies.reduction import refuse_beside_recovery

T = TypeVar("T")


class RecoversIfAsked(ABCMeta):
    """Creates a strategy that recovers in the job instead, if that is requested.

    Not in ``__new__``: LightningCLI would take its parameters for all that the class has.
    """

    def __call__(cls: type[T], *args: object, recovery: str | None = None, **kwargs: object) -> T:
        """A new strategy.

        Raises:
            MisconfigurationException: If one that recovers does not support the requested gradient reduction.
            RecoveryError: If recovery in the job is requested, and this class or layout does not support it.

        """
        given = kwargs if recovery is None else {**kwargs, "recovery": recovery}
        asked = not getattr(cls, "recovers", False) and recovers_in_job(recovery)
        if asked and not cls.__module__.startswith("lightning_sagemaker."):
            _say_that_it_does_not(cls.__name__, recovery)
            asked = False
        if not asked or not cls.can_recover(recovery, args, kwargs):  # type: ignore[attr-defined]
            made: T = ABCMeta.__call__(cls, *args, **given)
            return made
        # By name, as the factory does: that strategy is made of this one's parts.
        module, name = str(getattr(cls, "recovering", "")).split(".")
        made = getattr(import_module(f"lightning_sagemaker.strategies.{module}"), name)(*args, **kwargs)
        return made


def _say_that_it_does_not(name: str, recovery: str | None) -> None:
    """A class of the script's own would lose its overrides."""
    why = f"{name} is a strategy of this script's own, which does not recover in the job"
    if recovery == "in_job":
        raise RecoveryError(f"recovery='in_job' was set, and {why}. HINT: use one of this package's, or leave it out.")
    rank_zero_info(f"{why}: when a rank is lost, all ranks are restarted.")


class MayRecover(metaclass=RecoversIfAsked):
    """A Trainer's strategy that has a counterpart that recovers."""

    recovering = "in_job.InJobDDPStrategy"
    """Module of this folder, and the class in it that recovers in the job."""

    def __init__(self, *args: object, recovery: str | None = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)

    @classmethod
    def can_recover(cls, recovery: str | None, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Whether the counterpart takes these arguments.

        Args:
            recovery: As requested; None: a supervisor started this process.
            args: Arguments of the strategy.
            kwargs: Likewise.

        Raises:
            MisconfigurationException: If it does not support the requested gradient reduction.

        """
        refuse_beside_recovery(kwargs)
        return True


class FabricMayRecover(MayRecover):
    """The same for Fabric."""

    recovering = "fabric_in_job.FabricInJobDDPStrategy"


class ReplicasMayRecover(MayRecover):
    """A strategy that shards parameters: replicas of the shards recover from each other."""

    recovering = "in_job_fsdp.InJobFSDPStrategy"
    degrees: ParallelDegrees
    job: SageMakerJob

    @classmethod
    def can_recover(cls, recovery: str | None, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Whether there are replicas; without them all ranks are restarted, and resume from their hosts' memory.

        Args:
            recovery: As requested; None: a supervisor started this process.
            args: Arguments of the strategy.
            kwargs: Likewise.

        Raises:
            RecoveryError: If it is requested, and not possible.

        """
        obstacle = ABCMeta.__call__(cls, *args, **kwargs)._obstacle
        if obstacle and recovery == "in_job":
            raise RecoveryError(
                f"recovery='in_job' was set, and {obstacle}. HINT: leave it out: under supervise all ranks are then"
                " restarted, and resume from their hosts' memory."
            )
        return not obstacle

    @property
    def _obstacle(self) -> str:
        from lightning_sagemaker._compat.fsdp_groups import CAN_BEGIN_AGAIN

        degrees, world = self.degrees, self.job.world_size or 1
        if degrees.tensor > 1:
            return f"tensor_parallel_degree={degrees.tensor}"
        if degrees.shard == 1 or degrees.shards(world) == world:
            return "there is one replica of the model (hybrid_shard_degree), so no other one has a lost rank's shards"
        if getattr(self, "async_checkpoint", False):
            return "async_checkpoint=True, whose writes need all ranks"
        if not CAN_BEGIN_AGAIN:
            return "this torch cannot resume FSDP after a failed step (torch 2.13 can)"
        return ""
