# SPDX-License-Identifier: Apache-2.0
"""Selects a strategy and a backend for a job, each with its reason in a sentence. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lightning_sagemaker.job import Distribution, Launcher, SageMakerJob
from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
from lightning_sagemaker.smddp_modes import SmddpEngines, job_engines


@dataclass(frozen=True)
class Selection:
    """The selected strategy and backend.

    Attributes:
        name: Strategy: ``smddp``, ``ddp``, ``smp``, ``smddp_fsdp`` or ``single_device``.
        backend: Backend of ``torch.distributed``: ``smddp``, ``nccl`` or ``gloo``.
        reason: Why, in one sentence.

    """

    name: str
    backend: str
    reason: str


def select_strategy(job: SageMakerJob) -> Selection:
    """The strategy that ``strategy="sagemaker"`` selects for ``job``.

    Args:
        job: The job as read.

    Raises:
        SageMakerJobError: If the job asks for SMDDP and a variable that it reads is malformed.

    """
    if job.model_parallel_parameters:
        where = job.sources.get("model_parallel_parameters", "the job")
        if _shards_only(job.model_parallel_parameters) and job.world_size != 1:
            gathering = select_gathering(job)
            if gathering.backend == "smddp":
                reason = f"The job asks for sharded parameters in {where}, which SMDDP gathers. {gathering.reason}"
                return Selection("smddp_fsdp", gathering.backend, reason)
        return Selection("smp", _plain_backend(job), f"The job asks for model parallelism in {where}.")
    if job.distribution is Distribution.SMDDP:
        return _select_asked_smddp(job)
    if job.world_size == 1 or (job.world_size is None and job.num_nodes == 1 and job.num_gpus <= 1):
        reason = "Nothing here asks for more than one process" + (
            "." if job.world_size else ", unless devices or num_nodes do."
        )
        return Selection("single_device", _plain_backend(job), reason)
    if job.distribution is Distribution.NONE:
        return Selection("ddp", _plain_backend(job), f"There are several processes{_asked_for_nothing(job)}.")
    return Selection("ddp", _plain_backend(job), f"The job asks for {job.distribution.value}, which is plain DDP.")


def select_smddp_backend(job: SageMakerJob) -> Selection:
    """The backend with which an explicit ``strategy="smddp"`` reduces gradients in ``job``.

    Args:
        job: The job as read.

    Raises:
        SageMakerJobError: If a variable that SMDDP reads is malformed.

    """
    engines = job_engines(job)
    if (job.simulated or not job.in_container) and (job.smddp_version is None or not job.num_gpus):
        return Selection("smddp", "smddp", _stand_in(job, engines))
    obstacle = _smddp_obstacle(job, engines)
    if obstacle is None:
        supports = "" if job.instance_type is None else f" and supports {job.instance_type}"
        return Selection("smddp", "smddp", f"SMDDP {job.smddp_version} is installed{supports}.")
    backend = _plain_backend(job)
    return Selection("smddp", backend, f"{obstacle}, so {backend} reduces the gradients.")


def _stand_in(job: SageMakerJob, engines: SmddpEngines) -> str:
    """Why the shim is used, and why SMDDP itself would not reduce the gradients either."""
    where = "This is a simulated job" if job.simulated else "This is not a SageMaker job"
    reason = f"{where}, so the open shim stands in for AWS's SMDDP."
    if job.launcher is Launcher.NONE or engines.all_reduce.name == "smddp":
        return reason
    return f"{reason} {engines.all_reduce.reason}"


def select_gathering(job: SageMakerJob) -> Selection:
    """The backend with which an explicit ``strategy="smddp_fsdp"`` gathers parameters in ``job``.

    Args:
        job: The job as read.

    """
    gather = gather_engines(job).all_gather
    is_shim = gather.name == "smddp" and job.smddp_version is None
    reason = f"{gather.reason} The open shim stands in for AWS's library." if is_shim else gather.reason
    return Selection("smddp_fsdp", gather.name, reason)


def gather_engines(job: SageMakerJob) -> SmddpEngines:
    """Which engine runs which collective for sharded parameters.

    On a bare machine, where Lightning starts the processes, the shim gathers as it does under torchrun.

    Args:
        job: The job as read.

    """
    bare = not job.in_container and job.launcher is Launcher.NONE
    return job_engines(replace(job, launcher=Launcher.TORCHRUN) if bare else job)


def _shards_only(parameters: Mapping[str, object]) -> bool:
    """Whether only parameters are to be sharded, without pipeline or tensor parallelism."""
    try:
        degrees, _ = ParallelDegrees.from_parameters(parameters)
    except ParallelConfigError:  # "smp" says what is wrong
        return False
    return degrees.pipeline == degrees.tensor == 1 and degrees.shard != 1


def _select_asked_smddp(job: SageMakerJob) -> Selection:
    wanted = select_smddp_backend(job)
    if wanted.backend != "smddp":
        return Selection("ddp", wanted.backend, f"The job asks for SMDDP. {wanted.reason}")
    if job.num_nodes == 1 and not job.simulated:
        reason = "The job asks for SMDDP, which has no benefit on one host, so plain DDP is used."
        return Selection("ddp", _plain_backend(job), reason)
    return Selection("smddp", "smddp", f"The job asks for SMDDP. {wanted.reason}")


def _smddp_obstacle(job: SageMakerJob, engines: SmddpEngines) -> str | None:
    """Why AWS's library does not reduce the gradients of a real job; None when it does."""
    if job.smddp_version is None:
        return "AWS's SMDDP is not installed in this image (its images for PyTorch 2.6 and later have none)"
    if not job.num_gpus:
        return "SMDDP needs GPUs and this host has none"
    return None if engines.all_reduce.name == "smddp" else engines.all_reduce.reason.removesuffix(".")


def _plain_backend(job: SageMakerJob) -> str:
    return "nccl" if job.num_gpus else "gloo"


def _asked_for_nothing(job: SageMakerJob) -> str:
    return " and the job sets no distribution" if job.in_container else ""
