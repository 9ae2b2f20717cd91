# SPDX-License-Identifier: Apache-2.0
"""Errors that follow the loss of a rank: how they are recognized, and what they do to the process and to the job."""

from __future__ import annotations

import logging
import os
import sys
import time
from types import TracebackType

import torch.distributed as dist

from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.job_rank import JobRank
from lightning_sagemaker.recovery.wire import End

_log = logging.getLogger(__name__)

_NOTICE = 2.0
"""Seconds to wait for the notification of a loss after a collective has failed."""
_FAILED = ("gloo", "NCCL", "nccl", "Connection", "connection", "process group", "Broken pipe", "Socket", "socket")
"""Substrings of messages of a failed collective's RuntimeError. A store's errors have a class of their own instead."""


class StateLost(RecoveryError):
    """No rank has the training state."""


class RanksChanged(RuntimeError):
    """A rank was lost, or has joined: training resumes from its last step with the current ranks."""


def is_rank_loss(error: BaseException, rank: JobRank, step: int) -> bool:
    """Whether an error is from a collective that a rank did not join.

    Args:
        error: The exception.
        rank: This process as a rank of the job.
        step: The last committed step. If a connection was lost and no rank, all ranks repeat the next one.

    """
    if isinstance(error, RanksChanged):
        return True
    if not _is_of_collective(error):
        return False
    if not _has_changed(rank):  # a connection was lost, but no rank
        _log.warning(
            "rank %s: repeating a step, though no rank was lost: %s: %s", rank.number, type(error).__name__, error
        )
        rank.client.commit(step + 1, ok=False)
    return True


def _is_of_collective(error: BaseException) -> bool:
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _FAILED)


def _has_changed(rank: JobRank) -> bool:
    deadline = time.monotonic() + _NOTICE
    while not rank.client.changed and time.monotonic() < deadline:
        time.sleep(0.01)
    return rank.client.changed


def restart_after_losses(rank: JobRank) -> None:
    """Make this process exit with :data:`~.wire.RESTART` if it fails because others were lost, as before the first step.

    Args:
        rank: This process as a rank of the job.

    """
    if rank.follows:
        return
    rank.follows, hook = True, sys.excepthook

    def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hook(kind, error, trace)
        # Outside of the loops, ranks may change in the sanity check.
        if isinstance(error, (StateLost, RanksChanged)) or (_is_of_collective(error) and _has_changed(rank)):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(wire.RESTART)

    sys.excepthook = failed


def end_of_job(end: End, world_size: int, path: object) -> RecoveryError:
    """The error of a job that cannot continue.

    Args:
        end: The reason, from the coordinator.
        world_size: Number of shards of the job.
        path: Path of the checkpoint that was written.

    """
    if collective := end.get("collective"):
        return RecoveryError(
            f"{end['left']} of {world_size} ranks are left, and a step of the script calls {collective}, which needs all of"
            f" them. Wrote {path}. HINT: start the job again; with AutoResume it resumes from there."
        )
    if end["why"] == "few":
        return RecoveryError(
            f"{end['left']} of {world_size} ranks are left, fewer than the minimum of {end['minimum']}. "
            f"Wrote {path}."
            f" HINT: start the job again; with AutoResume it resumes from there."
        )
    lost = ", ".join(f"rank {rank}" for rank in end["lost"])
    return RecoveryError(
        f"Step {end['step'] + 1} has failed {end['failures']} times; each time a rank was lost ({lost}). Wrote {path}."
        " HINT: look at the last log lines of these ranks, and at the batch of this step."
    )
