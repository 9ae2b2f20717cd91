# SPDX-License-Identifier: Apache-2.0
"""Starts a job, and where there is no capacity for it the next of its alternatives; says each attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import CapacityError
from lightning_sagemaker.launch.planning.alternatives import hosts_in_words, over_limit
from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.planning.plan import price
from lightning_sagemaker.launch.tracking.jobs import JobStatus


def run_attempts(
    plans: Sequence[JobPlan],
    start: Callable[[JobPlan, int], str],
    follow: Callable[[str, JobPlan], JobStatus | None],
    say: Callable[[str], None],
) -> JobStatus | None:
    """Start the first plan for which there is capacity.

    Args:
        plans: In the order in which they are tried.
        start: Sends a plan, of which number, and returns the job's name; raises CapacityError.
        follow: Waits for a job; returns None where nobody waits.
        say: Gets a sentence for each attempt that is given up.

    Returns:
        How the last job ended; None where nobody waited.

    Raises:
        LaunchError: If there is no capacity for any of them, or none is within ``max_cost``.

    """
    spent, why, status = 0.0, "", None
    for number, plan in enumerate(plans):
        hosts, status = hosts_in_words(plan), None
        why = over_limit(plan, spent) or ""
        if why:
            say(f"not starting {hosts}: {why}")
            continue
        if number:
            say(f"next: {hosts}")
        try:
            status = follow(start(plan, number), plan)
        except CapacityError as error:
            why = str(error)
        else:
            if status is None or not status.lacks_capacity:
                return status
            cost = price(plan)
            spent += 0.0 if cost is None else cost.per_hour * status.seconds / 3600
            why = str(status.reason)
        if len(plans) > 1:
            say(f"no capacity for {hosts}: {why}")
    if status is not None:
        return status
    hint = "" if "HINT: " in why else ". HINT: list further instance types or regions, or raise max_cost."
    several = f"None of {len(plans)} configurations could be started; the last: " if len(plans) > 1 else ""
    raise LaunchError(f"{several}{why[:1].upper() if not several else why[:1]}{why[1:]}{hint}")
