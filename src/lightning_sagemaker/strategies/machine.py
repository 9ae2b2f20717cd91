# SPDX-License-Identifier: Apache-2.0
"""Lets this package's strategies run where Lightning would fail: with broken environments, and on Macs."""

from __future__ import annotations

from functools import cache
from typing import Protocol, cast

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.job import Launcher, SageMakerJob, SageMakerJobError
from lightning_sagemaker.selection import select_strategy

_REMEDIES = {"MPIEnvironment": "install an MPI library (Open MPI, MPICH), or uninstall mpi4py"}
_ANY_MPS = (None, "auto")


class _HasJob(Protocol):
    """A strategy of this package."""

    job: SageMakerJob


def is_ours(strategy: object) -> bool:
    """Whether a strategy, as passed to a Trainer or Fabric, is one of this package, or derived from one."""
    from lightning_sagemaker.registry import STRATEGIES

    if isinstance(strategy, str):
        return strategy.lower() in {entry.name for entry in STRATEGIES}
    return any(kind.__module__.startswith("lightning_sagemaker.") for kind in type(strategy).__mro__)


def broken_environment(kind: type, error: Exception) -> str:
    """The message for a Lightning environment whose detection fails."""
    cause = " ".join(str(error).split("\n")[0].split())
    remedy = _REMEDIES.get(kind.__name__, "repair or uninstall the package that it imports")
    return f"{kind.__name__} of Lightning cannot be detected ({type(error).__name__}: {cause}). HINT: {remedy}."


def pass_over(kind: type, error: Exception) -> None:
    """Log once that training continues without an environment."""
    log_once(f"{broken_environment(kind, error)} Training continues without it.")


def leaves_mps(strategy: object, accelerator: object, devices: object, num_nodes: int) -> bool:
    """Whether to train on the CPU of a Mac.

    Args:
        strategy: As passed by the user, like the other arguments.
        accelerator: Accelerator that could be MPS.
        devices: Devices of one host.
        num_nodes: Number of hosts.

    Raises:
        SageMakerJobError: If MPS was requested explicitly.

    """
    reason = _reason_against_mps(strategy, devices, num_nodes)
    if reason is None:
        return False
    if accelerator not in _ANY_MPS:
        raise SageMakerJobError(
            f"accelerator={accelerator!r} was set on a Mac, but strategies from the DDP family are not supported on the"
            f" MPS accelerator: {reason}. HINT: leave accelerator out, or set accelerator='cpu'."
        )
    log_once(f"Training on the CPU instead of the MPS device: {reason}.")
    return True


def _reason_against_mps(strategy: object, devices: object, num_nodes: int) -> str | None:
    chooses = isinstance(strategy, str) and strategy.lower().startswith("sagemaker")
    if not chooses and not getattr(strategy, "serves_one_device", False):
        name = repr(strategy) if isinstance(strategy, str) else type(strategy).__name__
        return f"strategy {name} needs a process group, which torch does not have for MPS"
    job = _job(strategy)
    if job.in_container:
        return "this is a SageMaker job, whose hosts have no MPS devices"
    several = select_strategy(job).name != "single_device" or _count(devices) > 1 or num_nodes > 1
    return "there are several processes, and torch has no process group for MPS" if several else None


def knows_ranks(strategy: object) -> bool:
    """Whether a strategy, as passed, reads its ranks from the launcher's variables, so that MPI need not be initialized."""
    return _job(strategy).launcher is not Launcher.NONE


def _job(strategy: object) -> SageMakerJob:
    return SageMakerJob.from_environment() if isinstance(strategy, str) else cast(_HasJob, strategy).job


def _count(devices: object) -> int:
    """Number of processes on a host for ``devices``; 1 for "all" on a Mac."""
    if isinstance(devices, (list, tuple)):
        return len(devices)
    text = str(devices)
    return int(text) if text.isdecimal() else len(text.split(","))


@cache
def log_once(sentence: str) -> None:
    """Log a sentence on rank zero, unless it was logged before."""
    rank_zero_info(sentence)
