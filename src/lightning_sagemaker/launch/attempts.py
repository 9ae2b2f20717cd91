# SPDX-License-Identifier: Apache-2.0
"""Start a job or, where there is no capacity for it, its alternatives in turn."""

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
        plans: Plans in the order in which they are tried.
        start: Called with a plan and its index; sends it and returns the job's name, or raises CapacityError.
        follow: Called with a job's name and its plan; returns the job's final status, or None without waiting.
        say: Called with a message for each abandoned and each further attempt.

    Returns:
        Final status of the last job, which may have failed for lack of capacity; None without waiting.

    Raises:
        LaunchError: If the last plan is not started, for lack of capacity or because of ``max_cost``.

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
