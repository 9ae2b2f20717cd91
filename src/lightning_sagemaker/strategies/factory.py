# SPDX-License-Identifier: Apache-2.0
"""Creates the strategy that a name selects in a job, for the Trainer and Fabric; classes are imported when needed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.job import SageMakerJob, SageMakerJobError
from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.recovery.supervised import recovers_in_job
from lightning_sagemaker.selection import select_strategy
from lightning_sagemaker.strategies.keywords import check_keywords
from lightning_sagemaker.strategies.smp_parameters import degrees_of

if TYPE_CHECKING:
    from lightning_sagemaker.strategies.ddp import JobDDPStrategy
    from lightning_sagemaker.strategies.job_aware import JobAware
    from lightning_sagemaker.strategies.model_parallel import SMPStrategy
    from lightning_sagemaker.strategies.sharded import FabricSMPShardedStrategy, SMPShardedStrategy

    JobStrategy = JobDDPStrategy | SMPShardedStrategy

TRAINER = {
    "single_device": "ddp.SageMakerDDPStrategy",
    "ddp": "ddp.SageMakerDDPStrategy",
    "smddp": "smddp.SMDDPStrategy",
    "smddp_fsdp": "fsdp.SMDDPFSDPStrategy",
    "smp": "factory.smp_strategy",
}
"""Name from :func:`~lightning_sagemaker.selection.select_strategy` -> module of this folder, and a name in it."""
FABRIC = {
    "single_device": "ddp.FabricSageMakerDDPStrategy",
    "ddp": "ddp.FabricSageMakerDDPStrategy",
    "smddp": "smddp.FabricSMDDPStrategy",
    "smddp_fsdp": "fsdp.FabricSMDDPFSDPStrategy",
    "smp": "factory.fabric_smp_strategy",
}
_IN_JOB = {"trainer": "in_job.InJobDDPStrategy", "fabric": "fabric_in_job.FabricInJobDDPStrategy"}
"""Data parallel strategies under a supervisor."""


def sagemaker_strategy(**kwargs: object) -> JobStrategy:
    """Create the strategy of ``Trainer(strategy="sagemaker")``: the one that fits the job.

    Args:
        **kwargs: Arguments of the strategy, such as those of ``lightning.pytorch.strategies.DDPStrategy``.

    Raises:
        SageMakerJobError: If the environment contradicts itself.

    """
    strategy: JobStrategy = _build_for_job(TRAINER, kwargs)
    strategy.stops_together = strategy.job.in_container
    return strategy


def fabric_sagemaker_strategy(**kwargs: object) -> JobAware:
    """Create the strategy of ``Fabric(strategy="sagemaker")``; see :func:`sagemaker_strategy`.

    Args:
        **kwargs: Arguments of the strategy, such as those of ``lightning.fabric.strategies.DDPStrategy``.

    """
    strategy: JobAware = _build_for_job(FABRIC, kwargs)
    return strategy


def _build_for_job(table: Mapping[str, str], kwargs: Mapping[str, object]) -> Any:
    job = SageMakerJob.from_environment()
    selection = select_strategy(job)
    if recovers_in_job(None) and selection.name in ("single_device", "ddp", "smddp"):
        rank_zero_info(
            "strategy='sagemaker' is 'ddp' with recovery='in_job' here: a supervisor started this process, and replaces"
            " those that die."
        )
        made = load(_IN_JOB, "trainer" if table is TRAINER else "fabric")(job=job, **kwargs)
        made.is_asked = False
        return made
    rank_zero_info(f"strategy='sagemaker' is {selection.name!r} here. {selection.reason}")
    return load(table, selection.name)(job=job, **kwargs)


def load(table: Mapping[str, str], name: str) -> Any:
    """The class or function that creates a strategy.

    Args:
        table: :data:`TRAINER` or :data:`FABRIC`.
        name: Name of the strategy.

    Raises:
        SageMakerJobError: If the table has no such name.

    """
    if name not in table:
        raise SageMakerJobError(f"{name!r} does not select a strategy by job. HINT: use one of {', '.join(table)}.")
    module, attribute = table[name].split(".")
    return getattr(import_module(f"lightning_sagemaker.strategies.{module}"), attribute)


def smp_strategy(
    parameters: Mapping[str, object] | None = None,
    degrees: ParallelDegrees | None = None,
    job: SageMakerJob | None = None,
    **kwargs: Any,
) -> SMPStrategy | SMPShardedStrategy:
    """Create the strategy of ``Trainer(strategy="smp")``: pipeline stages, or tensor parallelism and sharded parameters.

    Args:
        parameters: ``mp_parameters``; those of the job if None.
        degrees: The parallel layout; overrides both.
        job: The job; read from the process's environment if None.
        **kwargs: Arguments of the strategy.

    """
    from lightning_sagemaker.strategies.model_parallel import SMPStrategy
    from lightning_sagemaker.strategies.sharded import SMPShardedStrategy

    check_keywords(kwargs, SMPStrategy, SMPShardedStrategy)
    job = SageMakerJob.from_environment() if job is None else job
    found, _ = degrees_of(job, parameters, degrees)
    kind = SMPStrategy if found.pipeline > 1 else SMPShardedStrategy
    return kind(parameters=parameters, degrees=degrees, job=job, **kwargs)


def fabric_smp_strategy(**kwargs: Any) -> FabricSMPShardedStrategy:
    """Create the strategy of ``Fabric(strategy="smp")``: tensor parallelism and sharded parameters.

    Args:
        **kwargs: Arguments of :class:`~lightning_sagemaker.strategies.sharded.FabricSMPShardedStrategy`.

    Raises:
        ParallelConfigError: If the parameters request partitions.

    """
    from lightning_sagemaker.strategies.sharded import FabricSMPShardedStrategy

    return FabricSMPShardedStrategy(**kwargs)
