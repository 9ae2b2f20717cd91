# SPDX-License-Identifier: Apache-2.0
"""Checks of what SageMaker, SMDDP and model parallelism require of a job, before anything is uploaded.

Limits are those of the CreateTrainingJob API (botocore 1.44.5); the others have their source next to them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.job import Launcher, SageMakerJobError
from lightning_sagemaker.launch.planning.images import Image, evaluator_image
from lightning_sagemaker.launch.planning.instances import find_instance
from lightning_sagemaker.launch.spec.carried import carried_values
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.debugger import DEFAULT_IMAGE
from lightning_sagemaker.launch.spec.inputs import INPUT_MODES, S3_ADDRESS, FileSystemInput
from lightning_sagemaker.metric_lines import MAX_DEFINITIONS
from lightning_sagemaker.simulator.contract import MAX_HOSTS, exceeded_limit
from lightning_sagemaker.smddp_modes import (
    INSTANCE_TYPES,
    NEWEST_PYTORCH,
    SMDDP_VERSIONS,
    SmddpEngines,
    SmddpMode,
    smddp_engines,
)

MAX_RUN = 28 * 86_400
MAX_KEEP_ALIVE = 21_600
MAX_VOLUME = 16_384
MAX_TAGS = 50
MAX_ENVIRONMENT = 100
MAX_TEXT = 512
"""Maximum characters of an environment variable's value."""
MAX_REGEX = 500

_JOB_NAME = re.compile(r"(?=.{1,63}$)[A-Za-z0-9](-*[A-Za-z0-9])*")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+|[\w+=,.@-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PASSWORD = re.compile(r"://[^/@\s:]+:[^/@\s]+@")
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d")


def check(config: JobConfig, image: Image) -> None:
    """Check everything that can be checked without AWS.

    Raises:
        LaunchError: At the first violation.

    """
    for rule in _RULES:
        rule(config)
    _check_degrees(config, image)
    _check_smddp(config, image)


def check_debugger(config: JobConfig, region: str) -> None:
    """Raise LaunchError unless each rule of SageMaker Debugger has a name and an image that is in the region."""
    for rule in (*config.debugger_rules, *config.profiler_rules):
        name, image = rule.get("RuleConfigurationName"), rule.get("RuleEvaluatorImage")
        if not isinstance(name, str) or not isinstance(image, str):
            raise LaunchError(
                f"A rule of SageMaker Debugger is {dict(rule)!r}. HINT: write RuleConfigurationName and RuleEvaluatorImage,"
                f" which is {DEFAULT_IMAGE} for AWS's own."
            )
        evaluator_image(image, name, region)


def check_role(config: JobConfig) -> None:
    """Raise LaunchError without an execution role; a dry run and a rehearsal need none."""
    if config.role is None:
        raise LaunchError(
            "role is required: the job runs with its permissions. HINT: give its ARN; `lightning-sagemaker template role`"
            " prints a template that creates one."
        )


def check_job_name(name: str | None) -> None:
    """Raise LaunchError if a job may not have this name; None means a generated one."""
    if name is not None and not _JOB_NAME.fullmatch(name):
        raise LaunchError(
            f"job_name={name!r} was set. HINT: use 1 to 63 letters, digits and dashes, without a dash at either end."
        )


def _range(name: str, value: int | None, low: int, high: int, what: str) -> None:
    if value is not None and not low <= value <= high:
        raise LaunchError(f"{name}={value} was set. HINT: it must be {what} from {low} to {high}.")


def _check_hosts(config: JobConfig) -> None:
    find_instance(config.instance_type)
    _range("instance_count", config.instance_count, 1, MAX_HOSTS, "a number of hosts")
    for group in config.groups:
        find_instance(group.instance_type)
        _range("instance_count", group.instance_count, 1, MAX_HOSTS, "a number of hosts")
    _range("volume_size", config.volume_size, 1, MAX_VOLUME, "GiB")
    for region in (config.region, *config.other_regions):
        if region is not None and not _REGION.fullmatch(region):
            raise LaunchError(f"region={region!r} was set. HINT: use a region such as us-east-1.")
    if config.role is not None and not _ROLE.fullmatch(config.role):
        raise LaunchError(
            f"role={config.role!r} was set. HINT: give the name, or the ARN, arn:aws:iam::111122223333:role/NAME."
        )


def _check_time(config: JobConfig) -> None:
    _range("max_run", config.max_run, 1, MAX_RUN, "seconds")
    _range("keep_alive_period_in_seconds", config.keep_alive_period_in_seconds, 0, MAX_KEEP_ALIVE, "seconds")
    _range("max_retry_attempts", config.max_retry_attempts, 1, 30, "a number")
    if config.max_cost is not None and not 0 < config.max_cost < math.inf:
        raise LaunchError(f"max_cost={config.max_cost} was set. HINT: it must be more than 0 US dollars.")
    if config.max_wait is not None and not config.use_spot_instances:
        raise LaunchError(
            f"max_wait={config.max_wait} was set for an on-demand job. HINT: it only applies with use_spot_instances=True;"
            " max_run limits every job."
        )
    if config.max_wait is not None and config.max_wait < config.max_run:
        raise LaunchError(
            f"max_wait={config.max_wait} is less than max_run={config.max_run}, which it includes. HINT: set max_wait to at"
            f" least {config.max_run}."
        )
    if config.use_spot_instances and config.keep_alive_period_in_seconds:
        raise LaunchError("Warm pools do not support spot instances. HINT: leave keep_alive_period_in_seconds out.")


def _check_places(config: JobConfig) -> None:
    for name in ("output_path", "checkpoint_s3_uri", "tensorboard_output_path", "model_uri", "code_location"):
        value = getattr(config, name)
        if value is not None and not S3_ADDRESS.fullmatch(value):
            raise LaunchError(f"{name}={value!r} was set. HINT: write s3://bucket/prefix/.")
    if not config.checkpoint_local_path.startswith("/"):
        raise LaunchError(
            f"checkpoint_local_path={config.checkpoint_local_path!r} was set. HINT: it must be an absolute path."
        )
    if config.input_mode not in INPUT_MODES:
        raise LaunchError(f"input_mode={config.input_mode!r} was set. HINT: choose one of {', '.join(INPUT_MODES)}.")
    if bool(config.subnets) != bool(config.security_group_ids):
        raise LaunchError("subnets and security_group_ids go together. HINT: set both, or neither.")
    shared = [name for name, source in config.channels.items() if isinstance(source, FileSystemInput)]
    if shared and not config.subnets:
        raise LaunchError(
            f"Channel {shared[0]!r} is a file system, which needs a VPC. HINT: set subnets and security_group_ids."
        )


def _check_groups(config: JobConfig) -> None:
    known = [group.instance_group_name for group in config.groups]
    for name, source in config.channels.items():
        for group in () if isinstance(source, FileSystemInput) else source.instance_groups or ():
            if group not in known:
                raise LaunchError(
                    f"Channel {name!r} is for the instance group {group!r}, which the job does not have. HINT: define its"
                    " groups with instance_groups, or leave them out of the channel."
                )
    if config.distributed.groups not in ((), tuple(known[:1])):
        trains = f"{known[0]!r} trains" if known else "the hosts are in no groups"
        raise LaunchError(
            f"distribution names the instance group {config.distributed.groups[0]!r}, but {trains}. HINT: give"
            " instance_groups, a list of all groups."
        )
    if config.other_groups and not known:
        raise LaunchError(
            "other_groups was set without instance_group. HINT: give instance_groups, a list of all groups."
        )
    if config.other_groups and config.keep_alive_period_in_seconds:
        raise LaunchError("Warm pools support one group of hosts only. HINT: leave keep_alive_period_in_seconds out.")


def _check_hyperparameters(config: JobConfig) -> None:
    texts: dict[str, str] = {}
    for name, value in config.hyperparameters.items():
        if name.startswith("sagemaker_"):
            raise LaunchError(
                f"Hyperparameter {name!r} was set, but SDK 2's containers take names with sagemaker_ for themselves, and SDK"
                " 3's pass them to the script. HINT: use entry_point, source_dir and distribution."
            )
        try:
            (texts[name],) = carried_values({name: value}).values()
        except (TypeError, ValueError):
            raise LaunchError(
                f"Hyperparameter {name!r} is {type(value).__name__}. HINT: use strings, numbers, lists and dictionaries;"
                " pass anything else in a source file."
            ) from None
    if (problem := exceeded_limit(texts)) is not None:
        raise LaunchError(problem)
    for name, text in texts.items():
        if _PASSWORD.search(text):
            raise LaunchError(
                f"Hyperparameter {name!r} has a URL with a password, and anyone who may describe the job can"
                " read it. HINT: remove it from the URL, and let the program get it from AWS Secrets Manager."
            )


def _check_environment(config: JobConfig) -> None:
    if len(config.environment) > MAX_ENVIRONMENT:
        raise LaunchError(
            f"environment has {len(config.environment)} variables. HINT: at most {MAX_ENVIRONMENT} are accepted."
        )
    for name, value in config.environment.items():
        if not _VARIABLE.fullmatch(str(name)) or not isinstance(value, str) or len(value) > MAX_TEXT:
            raise LaunchError(
                f"environment has {name!r}. HINT: use a name of letters, digits and underscores, and a value of at"
                f" most {MAX_TEXT} characters."
            )
    if len(config.tags) > MAX_TAGS:
        raise LaunchError(f"{len(config.tags)} tags were set. HINT: at most {MAX_TAGS} are accepted.")


def _check_metrics(config: JobConfig) -> None:
    definitions = config.metric_definitions or ()
    if len(definitions) > MAX_DEFINITIONS:
        raise LaunchError(
            f"{len(definitions)} metric_definitions were given. HINT: at most {MAX_DEFINITIONS} are accepted."
        )
    for one in definitions:
        try:
            regex = one["Regex"]
            is_good = bool(one["Name"]) and len(regex) <= MAX_REGEX and re.compile(regex).groups >= 1
        except (KeyError, TypeError, re.error):
            is_good = False
        if not is_good:
            raise LaunchError(
                f"metric_definitions has {one!r}. HINT: write Name, and a Regex of at most {MAX_REGEX} characters with a"
                " group around the number."
            )


def _check_distribution(config: JobConfig) -> None:
    request, instance = config.distributed, find_instance(config.instance_type)
    if config.recovery not in ("restart", "in_job"):
        raise LaunchError(f"recovery={config.recovery!r} was set. HINT: choose restart or in_job.")
    if request.recovers and request.kind not in ("ddp", "torch_distributed"):
        raise LaunchError(
            f"recovery='in_job' was set with distribution={request.kind!r}, whose ranks cannot be replaced one by one."
            ' HINT: set distribution="torch_distributed", or leave recovery out.'
        )
    if request.kind == "smp" and not request.parameters:
        raise LaunchError(
            'distribution="smp" was set without parameters. HINT: write {"smdistributed": {"modelparallel": {"enabled":'
            ' True, "parameters": {"partitions": 2, "microbatches": 4}}}, "mpi": {"enabled": True}}.'
        )
    if request.kind == "none":
        return
    count = request.processes_per_host
    if instance.gpus and count is not None and count > instance.gpus:
        raise LaunchError(
            f"{count} processes per host were requested, {instance.name} has {instance.gpus} GPUs. HINT: leave the number"
            " out, or use a larger instance."
        )


def _check_degrees(config: JobConfig, image: Image) -> None:
    request = config.distributed
    if request.kind != "smp":
        return
    from lightning_sagemaker.parallel.degrees import ParallelConfigError, ParallelDegrees
    from lightning_sagemaker.parallel.keys import BY_NAME, KeySupport

    parameters: Mapping[str, object] = request.parameters
    if not image.takes_plugin:  # AWS's own library is what runs there, and it supports more
        known = {name for name, key in BY_NAME.items() if key.support is not KeySupport.REFUSED}
        parameters = {name: value for name, value in parameters.items() if name in known}
    per_host = request.processes_per_host or find_instance(config.instance_type).gpus or 1
    world_size = config.instance_count * per_host
    try:
        degrees, _ = ParallelDegrees.from_parameters(parameters)
        degrees.replicas(world_size)
        degrees.shards(world_size)
    except ParallelConfigError as error:
        raise LaunchError(
            f"{error} ({config.instance_count} x {config.instance_type}: {world_size} processes)"
        ) from error


def _check_smddp(config: JobConfig, image: Image) -> None:
    engines = _smddp_engines(config, image)
    if config.distributed.kind != "smddp":
        return
    if config.instance_type not in INSTANCE_TYPES:
        raise LaunchError(
            f"SMDDP does not run on {config.instance_type}. HINT: use one of {', '.join(INSTANCE_TYPES)} (developer"
            ' guide, November 2026), or distribution="ddp".'
        )
    if image.pytorch is not None and image.smddp is None:
        raise LaunchError(
            f"The image of PyTorch {image.pytorch} has no SMDDP. HINT: set pytorch_version to one of"
            f" {', '.join(SMDDP_VERSIONS)} (release notes, November 2026; the newest is {NEWEST_PYTORCH}), or"
            ' distribution="ddp".'
        )
    if engines is None:
        return
    engine = engines.all_gather if engines.mode is SmddpMode.ALL_GATHER else engines.all_reduce
    if engine.name != "smddp":
        raise LaunchError(
            f"SMDDP {image.smddp} would run no collective: {engine.reason} HINT: use an ml.p4d.24xlarge, or"
            ' distribution="ddp".'
        )


def _smddp_engines(config: JobConfig, image: Image) -> SmddpEngines | None:
    """Engines that the image's SMDDP would use under ``smddprun``; its variables are checked for every distribution."""
    if image.smddp is None:
        return None
    try:
        return smddp_engines(Launcher.SMDDPRUN, config.environment, image.smddp, config.instance_type)
    except SageMakerJobError as error:
        raise LaunchError(str(error)) from error


_RULES: tuple[Callable[[JobConfig], None], ...] = (
    _check_hosts,
    _check_time,
    _check_hyperparameters,
    _check_environment,
    _check_metrics,
    _check_places,
    _check_groups,
    _check_distribution,
)
