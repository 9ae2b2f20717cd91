# SPDX-License-Identifier: Apache-2.0
"""Alternative instance types and regions of a job, in the order in which they are tried without capacity.

The world size is kept, so that the global batch size, and what checkpoints record of it, stay the same.
"""

from __future__ import annotations

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.planning.instances import Instance, find_instance
from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.planning.plan import make_plan, own_region, price
from lightning_sagemaker.launch.spec.config import JobConfig


def alternative_configs(config: JobConfig) -> list[JobConfig]:
    """The job as described, then with its other instance types, then all of them in its other regions.

    Raises:
        LaunchError: If a type cannot have the same world size, or differs from the first in having GPUs.

    """
    first = config.changed(other_instance_types=(), other_regions=())
    types = [first, *(_on(first, name) for name in config.other_instance_types)]
    regions = [config.region or own_region(), *config.other_regions]
    if not config.other_regions:
        return types
    return [one.changed(region=region) for region in regions for one in types]


def _on(config: JobConfig, name: str) -> JobConfig:
    """The same job on another instance type, with the same world size."""
    old, new = find_instance(config.instance_type), find_instance(name)
    hosts, per_host = config.instance_count, config.distributed.processes_per_host
    if bool(old.gpus) != bool(new.gpus):
        raise LaunchError(
            f"instance_type lists {old.name} and {new.name}, one of which has no GPU. HINT: list either GPU or CPU types."
        )
    has_own_number = per_host is not None and per_host <= (new.gpus or per_host)
    if config.distributed.kind == "none" or has_own_number:
        return config.changed(instance_type=name)
    processes = hosts * _processes(old)
    if processes % _processes(new):
        raise LaunchError(
            f"{hosts} x {old.name} train with {processes} processes, which {name} hosts with {new.gpus} GPUs cannot match,"
            " so the global batch size would change. HINT: leave the type out, or change instance_count."
        )
    return config.changed(instance_type=name, instance_count=processes // _processes(new))


def _processes(instance: Instance) -> int:
    return max(1, instance.gpus)


def alternative_plans(plan: JobPlan) -> list[JobPlan]:
    """The plan itself, and those of the job's other instance types and regions, with the same source and name.

    Raises:
        LaunchError: If one of them breaks a rule, such as an image that a region does not have.

    """
    others = alternative_configs(plan.config)[1:]
    first = plan.changed(other_instance_types=(), other_regions=())
    return [first, *(make_plan(one, like=plan) for one in others)]


def over_limit(plan: JobPlan, spent: float = 0.0) -> str | None:
    """Why a job may not be started under ``max_cost``; None if it may.

    Args:
        plan: The job.
        spent: Cost of earlier attempts in US dollars.

    """
    limit = plan.config.max_cost
    if limit is None:
        return None
    found = price(plan)
    if found is None:
        return f"the price of {plan.config.instance_type} is unknown, and max_cost is ${limit:,.2f}"
    if not found.is_of_region:
        return (
            f"the prices of {plan.region} are unknown, and max_cost is ${limit:,.2f}. HINT: --refresh-prices reads them from"
            " AWS's price list"
        )
    if found.at_most + spent > limit:
        before = f", after ${spent:,.2f} for earlier attempts" if spent else ""
        return f"it may cost ${found.at_most:,.2f}{before}, and max_cost is ${limit:,.2f}"
    return None


def hosts_in_words(plan: JobPlan) -> str:
    """Number, instance type and region of the hosts, as text."""
    return f"{plan.config.instance_count} x {plan.config.instance_type} in {plan.region}"
