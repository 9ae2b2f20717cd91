# SPDX-License-Identifier: Apache-2.0
"""Duration of a training, with checkpoints, and on spot instances with interruptions."""

from __future__ import annotations

import math
from dataclasses import dataclass

STARTUP_SECONDS = 300.0
"""Time to start a job (instances, image, data), also after each interruption. A typical figure."""
CHECKPOINT_BANDWIDTH = 0.5e9
"""Bytes per second of one host to its checkpoint folder; a typical figure of a network volume."""
CHECKPOINT_BYTES = 12
"""Bytes for each parameter: float32 weights and Adam's two moments."""
NOTICE_SECONDS = 120.0
"""From SIGTERM to SIGKILL on a spot instance."""
INTERRUPTIONS = (0.002, 0.02, 0.2)
"""Interruptions per host and day: few, usual, many. AWS's spot advisor lists pools from below 5% to above 20% a month;
GPUs are at the upper end."""
SPOT_SHARES = (0.3, 0.6)
"""Price of spot instances as a share of the on-demand price: lowest, highest."""


@dataclass(frozen=True)
class Policy:
    """When a run saves checkpoints, and how long a start takes.

    Attributes:
        parameters: Number of model parameters, which sets the size of a checkpoint.
        checkpoint_minutes: Minutes between checkpoints.
        startup: Seconds to start the job.
        in_background: Whether training continues while a checkpoint is written.

    """

    parameters: float
    checkpoint_minutes: float = 10.0
    startup: float = STARTUP_SECONDS
    in_background: bool = False

    @property
    def save_seconds(self) -> float:
        """Seconds to write a checkpoint."""
        return self.parameters * CHECKPOINT_BYTES / CHECKPOINT_BANDWIDTH

    @property
    def lost_seconds(self) -> float:
        """Mean seconds of training that an interruption loses: 0 if a checkpoint can be saved within the notice."""
        return 0.0 if self.save_seconds < NOTICE_SECONDS else self.checkpoint_minutes * 60 / 2


@dataclass(frozen=True)
class Run:
    """Duration of a training run.

    Attributes:
        hours: Hours on demand.
        spot_hours: Hours on spot instances: with few, usual, many interruptions.
        interruptions: Expected number of interruptions at the usual rate.

    """

    hours: float
    spot_hours: tuple[float, float, float]
    interruptions: float


def run_time(samples: float, rate: float, hosts: int, policy: Policy) -> Run:
    """Hours of a training.

    Args:
        samples: Number of samples to train on.
        rate: Samples per second.
        hosts: Number of hosts: an interruption of any of them interrupts all.
        policy: When checkpoints are saved.

    """
    work = samples / rate
    if not policy.in_background:
        work *= 1 + policy.save_seconds / (policy.checkpoint_minutes * 60)
    few, usual, many = (per_day / 86400 * hosts for per_day in INTERRUPTIONS)
    spot = [interrupted_seconds(work, each, policy) + policy.startup for each in (few, usual, many)]
    hours = (work + policy.startup) / 3600
    return Run(hours, (spot[0] / 3600, spot[1] / 3600, spot[2] / 3600), usual * spot[1])


def interrupted_seconds(work: float, per_second: float, policy: Policy) -> float:
    """Expected seconds of ``work`` seconds when interruptions come at an exponential rate.

    If a checkpoint can be saved within the notice, an interruption costs a start only. Starts can be interrupted too,
    so one takes (exp(rate x start) - 1) / rate. Otherwise the time since the last checkpoint is repeated as well: an
    interval of t seconds between checkpoints takes (exp(rate x t) - 1) x (1 / rate + restart) on average (Daly 2006).

    Args:
        work: Seconds of training.
        per_second: Interruptions of the job per second.
        policy: When checkpoints are saved, and how long a start takes.

    """
    if per_second <= 0 or work <= 0:
        return max(0.0, work)
    restart = _expm1(per_second * policy.startup) / per_second
    if policy.lost_seconds == 0:
        return work * (1 + per_second * restart)
    interval = min(work, policy.checkpoint_minutes * 60)
    return work / interval * _expm1(per_second * interval) * (1 / per_second + restart)


def _expm1(exponent: float) -> float:
    """``math.expm1``, but infinity instead of an overflow: so many interruptions that the run never finishes."""
    return math.expm1(exponent) if exponent < 700 else math.inf
