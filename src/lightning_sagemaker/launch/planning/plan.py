# SPDX-License-Identifier: Apache-2.0
"""Resolve a job description into a plan, before anything is paid for."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from lightning_sagemaker.aws_types import Session
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.job import SMDDP_VARIABLES, Distribution, Launcher, SageMakerJob
from lightning_sagemaker.launch.aws import translate_aws_errors
from lightning_sagemaker.launch.planning import rules
from lightning_sagemaker.launch.planning.images import Image, find_image, named_image, parse_version
from lightning_sagemaker.launch.planning.instances import find_instance
from lightning_sagemaker.launch.planning.job_plan import SPOT_PATIENCE, JobPlan, base_name
from lightning_sagemaker.launch.planning.pricing import Estimate, estimate, load_prices
from lightning_sagemaker.launch.planning.recipe_options import check_recipe_options
from lightning_sagemaker.launch.planning.sdk_defaults import sdk_defaults, with_defaults
from lightning_sagemaker.launch.source.bundle import make_bundle
from lightning_sagemaker.launch.source.channel_files import ChannelFiles, choose_channel_files
from lightning_sagemaker.launch.source.vendored import Target
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.distribution import DistributionRequest
from lightning_sagemaker.launch.spec.inputs import FileSystemInput
from lightning_sagemaker.metric_lines import metric_definitions, names_of
from lightning_sagemaker.selection import Selection, select_strategy
from lightning_sagemaker.simulator.contract import LOG_LEVEL
from lightning_sagemaker.smddp_modes import NEWEST_PYTORCH

_FALLBACK_REGION = "us-east-1"


def make_plan(
    config: JobConfig,
    suffix: str | None = None,
    like: JobPlan | None = None,
    defaults: Mapping[str, object] | None = None,
    session: Session | None = None,
) -> JobPlan:
    """Resolve a job description into a plan; nothing is uploaded or started.

    Args:
        config: The job as described.
        suffix: End of the base name, which distinguishes jobs created in the same second; random when None.
        like: A plan of the same job on other instances, whose source, uploads and base name are reused.
        defaults: Content of the SageMaker SDK's configuration files; read from them when None.
        session: The user's boto3 session, for a source in S3; created when None.

    Raises:
        LaunchError: If the job breaks a rule, or its image or source does not exist.

    """
    config = with_defaults(config, sdk_defaults() if defaults is None else defaults)
    region = config.region or own_region()
    image = choose_image(config, region)
    rules.check(config, image)
    check_recipe_options(config)
    rules.check_debugger(config, region)
    include = image.takes_plugin if config.include_plugin is None else config.include_plugin
    bundle = make_bundle(config, include, _target(config, image), session) if like is None else like.bundle
    request = config.distributed
    parallel = {"mp_parameters": dict(request.parameters)} if request.parameters else {}
    names = metric_definitions(names_of(config.recipe))
    spot = config.use_spot_instances
    uri = config.checkpoint_s3_uri
    return JobPlan(
        config=config,
        region=region,
        image=image,
        bundle=bundle,
        base_name=f"{base_name(config)}-{suffix or secrets.token_hex(2)}" if like is None else like.base_name,
        hyperparameters={**config.hyperparameters, **parallel},
        environment=_environment(config),
        channels=config.channels,
        metric_definitions=tuple(names if config.metric_definitions is None else config.metric_definitions),
        max_wait=config.max_wait or (config.max_run + SPOT_PATIENCE if spot else None),
        uploads=_uploads(config) if like is None else like.uploads,
        checkpoint_uri=None if uri is None else f"{uri.rstrip('/')}/",
    )


def _target(config: JobConfig, image: Image) -> Target | None:
    """The platform to fetch wheels for; None if the container has network access."""
    if not config.enable_network_isolation:
        return None
    python = image.python or parse_version((config.py_version or "").removeprefix("py").replace("3", "3.", 1))
    if len(python) < 2:
        raise LaunchError(
            "The container has no network, and the Python version of image_uri, needed to select wheels, is unknown. HINT:"
            " set py_version, such as py312."
        )
    return Target(python, image.pytorch)


def _uploads(config: JobConfig) -> dict[str, ChannelFiles]:
    return {
        name: choose_channel_files(name, Path(source.s3_data), config.send_anyway)
        for name, source in config.channels.items()
        if not isinstance(source, FileSystemInput) and source.is_local
    }


def _environment(config: JobConfig) -> dict[str, str]:
    level = {"SM_LOG_LEVEL": str(config.container_log_level)} if config.container_log_level != LOG_LEVEL else {}
    return {**level, **config.environment}


def own_region() -> str:
    """The AWS region that is configured on this machine; us-east-1 if there is none."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        import boto3
    except ImportError:
        return _FALLBACK_REGION
    with translate_aws_errors("Reading AWS's configuration"):
        return boto3.Session().region_name or _FALLBACK_REGION


def choose_image(config: JobConfig, region: str) -> Image:
    """The training image of a job: ``image_uri``, or AWS's image with the versions that the job sets."""
    if config.image_uri is not None:
        return named_image(config.image_uri)
    version = config.pytorch_version
    if version is None and config.transformers_version is None and config.distributed.kind == "smddp":
        version = NEWEST_PYTORCH
    return find_image(
        region,
        config.instance_type,
        version,
        config.transformers_version,
        config.py_version,
        parallel_library=_wants_library(config),
        smdistributed=config.distributed.kind in ("smddp", "smp"),
    )


def _wants_library(config: JobConfig) -> bool:
    """Whether the job can use version 2 of AWS's model parallel library, which shards and has no pipeline."""
    request = config.distributed
    pipeline = {"partitions", "pipeline_parallel_degree"} & set(request.parameters)
    return request.kind == "smp" and request.uses_torchrun and not pipeline


def announced_strategy(plan: JobPlan, simulated: bool = False) -> Selection:
    """The strategy that ``strategy="sagemaker"`` will select in the job, and why.

    Args:
        plan: The job.
        simulated: Whether the job runs in a simulated cluster.

    """
    return select_strategy(announced_job(plan, simulated))


def announced_job(plan: JobPlan, simulated: bool = False) -> SageMakerJob:
    """The job as its processes will detect it."""
    config, request = plan.config, plan.config.distributed
    instance = find_instance(config.instance_type)
    gpus = 0 if simulated else instance.gpus
    per_host = request.processes_per_host or (1 if request.kind == "none" else max(1, gpus))
    launched = request.kind != "none" or request.processes_per_host is not None
    return SageMakerJob(
        in_container=True,
        simulated=simulated,
        hosts=tuple(f"algo-{index}" for index in range(1, config.instance_count + 1)),
        num_nodes=config.instance_count,
        num_gpus=gpus,
        instance_type=config.instance_type,
        instance_group=config.instance_group,
        distribution=Distribution.MODEL_PARALLEL if request.kind == "smp" else Distribution(request.kind),
        model_parallel_parameters=dict(request.parameters),
        world_size=per_host * config.instance_count if launched else None,
        launcher=_launcher(request) if launched else Launcher.NONE,
        smddp_version=plan.image.smddp,
        smddp_variables={name: value for name, value in plan.environment.items() if name in SMDDP_VARIABLES},
    )


def _launcher(request: DistributionRequest) -> Launcher:
    if request.kind == "smddp":
        return Launcher.SMDDPRUN if request.uses_mpi else Launcher.TORCHRUN
    if request.kind in ("ddp", "mpi"):
        return Launcher.MPI
    return Launcher.TORCHRUN if request.uses_torchrun else Launcher.MPI


def world_size(plan: JobPlan) -> int:
    """Number of training processes of the job, one per GPU by default."""
    request, instance = plan.config.distributed, find_instance(plan.config.instance_type)
    return plan.config.instance_count * (request.processes_per_host or max(1, instance.gpus))


def price(plan: JobPlan) -> Estimate | None:
    """Estimated cost of the job; None if the price of an instance type is unknown."""
    config, prices = plan.config, load_prices(plan.region)
    hosts = {config.instance_type: config.instance_count}
    for group in config.groups[1:]:
        hosts[group.instance_type] = hosts.get(group.instance_type, 0) + group.instance_count
    seconds = config.max_run + (config.keep_alive_period_in_seconds or 0)  # a warm pool is paid for as well
    return estimate(prices, hosts, seconds, plan.region, config.use_spot_instances)
