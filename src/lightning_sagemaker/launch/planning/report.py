# SPDX-License-Identifier: Apache-2.0
"""A plan in a few lines, for people to read before anything is paid for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from lightning_sagemaker.container.lightning_redaction import known_secrets, named_secrets
from lightning_sagemaker.launch.planning.alternatives import alternative_plans, hosts_in_words
from lightning_sagemaker.launch.planning.instances import find_instance
from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.planning.plan import announced_job, announced_strategy, price, world_size
from lightning_sagemaker.launch.planning.pricing import load_prices
from lightning_sagemaker.launch.source.channel_files import PREFIX, ChannelFiles
from lightning_sagemaker.launch.source.secret_contexts import secrets_in_context
from lightning_sagemaker.launch.source.vendored import FOLDER
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.groups import InstanceGroup
from lightning_sagemaker.launch.spec.inputs import FileSystemInput
from lightning_sagemaker.smddp_modes import job_engines

_BATCH_NAMES = ("per_device_train_batch_size", "train_batch_size", "train-batch-size", "batch_size", "batch-size")
"""Names of hyperparameters that usually set the batch size of a process."""

_PLACES = ("output_path", "checkpoint_s3_uri", "code_location", "model_uri", "tensorboard_output_path", "image_uri")
"""Keys of a job whose values are addresses."""

_SHOWN = 12
"""Maximum number of file names in a line."""


def describe(plan: JobPlan) -> list[tuple[str, str]]:
    """The plan as pairs of a label and a text.

    Args:
        plan: The plan; its output location may still be unset.

    Raises:
        LaunchError: If another instance type or region of the job breaks a rule.

    """
    config = plan.config
    chosen, others = announced_strategy(plan), alternative_plans(plan)[1:]
    gpus = _gpus(config.instance_type)
    lines = [
        ("job", f"{plan.base_name}-<time> in {plan.region}"),
        ("program", config.recipe or str(config.entry_point)),
        ("hosts", f"{config.instance_count} x {config.instance_type}{_named(config.instance_group)}: {gpus}"),
        *(("beside", _beside(group)) for group in config.groups[1:]),
        ("image", plan.image.uri),
        ("strategy", f"{chosen.name} ({chosen.backend}). {chosen.reason}"),
        *([("smddp", _smddp(plan))] if plan.image.smddp else []),
        *([("recovery", "in the job: a process that dies is replaced")] if config.recovery == "in_job" else []),
        ("global batch", _global_batch(plan)),
        ("source", _source(plan)),
        *([("wheels", _wheels(plan))] if plan.config.enable_network_isolation else []),
        ("sent", _sent(plan)),
        *(("not sent", line) for line in not_sent(plan)),
        ("inputs", "; ".join(_inputs(plan)) or "none"),
        ("output", config.output_path or "the account's default bucket"),
        ("checkpoints", plan.checkpoint_uri or ("under the output" if config.use_spot_instances else "not kept in S3")),
        ("spot", f"yes, max_wait {_hours(plan.max_wait or 0)}" if config.use_spot_instances else "no"),
        ("cost", _cost(plan)),
        *(("otherwise", hosts_in_words(one)) for one in others),
    ]
    lines += [("remark", remark) for remark in _remarks(plan)]
    return lines


def _smddp(plan: JobPlan) -> str:
    """Which collectives the image's SMDDP runs, for a program that uses SMDDP."""
    engines = job_engines(announced_job(plan))
    reasons = dict.fromkeys((engines.all_reduce.reason, engines.all_gather.reason, *engines.notes))
    takes = f"AllReduce by {engines.all_reduce.name}, AllGather by {engines.all_gather.name}"
    return f"{plan.image.smddp}: {takes}. {' '.join(reasons)}"


def _gpus(instance_type: str) -> str:
    one = find_instance(instance_type)
    return f"{one.gpus} {one.gpu} with {one.gpu_memory} GiB each" if one.gpus else "no GPU"


def _named(group: str | None) -> str:
    return "" if group is None else f" (instance group {group})"


def _beside(group: InstanceGroup) -> str:
    """Text about an instance group that takes no part in the training."""
    hosts = f"{group.instance_count} x {group.instance_type}{_named(group.instance_group_name)}"
    return f"{hosts}: {_gpus(group.instance_type)}; the program runs once on each, independently"


def _global_batch(plan: JobPlan) -> str:
    from lightning_sagemaker.parallel.degrees import ParallelDegrees

    settings = _settings(plan)
    if settings.get("global_batch_size"):
        return f"{settings['global_batch_size']} (global_batch_size)"
    replicas = world_size(plan)
    if plan.config.distributed.kind == "smp":
        degrees, _ = ParallelDegrees.from_parameters(plan.config.distributed.parameters)
        replicas = degrees.replicas(replicas)
    for name in ("per_process_batch_size", *_BATCH_NAMES):
        value = settings.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value * replicas}: {value} ({name}) x {replicas} processes with their own data"
    return f"the program's batch size, x {replicas} processes with their own data"


def _settings(plan: JobPlan) -> Mapping[str, object]:
    """The hyperparameters, which override the ``data`` section of a recipe's configuration."""
    given = {name.rpartition(".")[2]: value for name, value in plan.hyperparameters.items()}
    if plan.config.recipe is None:
        return given
    import yaml

    from lightning_sagemaker.recipe_files import recipe_folder

    path = recipe_folder(plan.config.recipe) / Path(str(given.get("config", "config.yaml"))).with_suffix(".yaml").name
    data = (yaml.safe_load(path.read_text()) or {}).get("data", {}) if path.is_file() else {}
    if "per_device_train_batch_size" in given or "per_process_batch_size" in given:
        data = {**data, "global_batch_size": None}
    return {**data, **given}


def _source(plan: JobPlan) -> str:
    bundle = plan.bundle
    text = f"{len(bundle.files)} files, {len(bundle.content) / 2**20:.1f} MiB packed, sha256 {bundle.digest[:16]}"
    return text if bundle.is_scanned else f"{text}; not scanned for secrets (needs detect-secrets, in [launch])"


def not_sent(plan: JobPlan) -> list[str]:
    """One line for each reason why files of the source or of local channels are not sent, with their names."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in plan.bundle.left_out.items():
        by_reason.setdefault(reason, []).append(name)
    for channel, files in plan.uploads.items():
        for name, reason in files.left_out.items():
            by_reason.setdefault(reason, []).append(f"{PREFIX}/{channel}/{name}")
    return [f"{', '.join(names[:_SHOWN])}{_more(names)} ({reason})" for reason, names in sorted(by_reason.items())]


def exposed(job: JobPlan | JobConfig) -> list[str]:
    """A warning for each part of the request that looks like a secret: those who may describe the job can read it all."""
    config = job if isinstance(job, JobConfig) else job.config
    channels = {name: one.s3_data for name, one in config.channels.items() if not isinstance(one, FileSystemInput)}
    named: dict[str, Mapping[str, object]] = {
        "hyperparameter": job.hyperparameters,
        "variable": job.environment,
        "tag": config.tags,
        "channel": channels,
        "metric": {str(one.get("Name")): one.get("Regex") for one in config.metric_definitions or ()},
        "value of experiment_config": config.experiment_config or {},
        "option": {
            "custom_mpi_options": config.distributed.mpi_options,
            **{name: getattr(config, name) for name in ("base_job_name", *_PLACES)},
        },
    }
    return [
        f"the {what} {name} looks like a secret, and anyone who may describe the job can read it; use AWS Secrets Manager"
        for what, values in named.items()
        for name, value in values.items()
        if _is_secret(str(name), value)
    ]


def _is_secret(name: str, value: object) -> bool:
    """Whether a value, or one within it, looks like a secret."""
    if value is None or isinstance(value, (bool, int, float)):
        return False
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    named = [*named_secrets(f"{name}={text}"), *named_secrets(text)]  # NAME=VALUE may be the value of another
    return any([*known_secrets(text), *named, *secrets_in_context(text)])


def _more(names: list[str]) -> str:
    return f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""


def _wheels(plan: JobPlan) -> str:
    """Text about the wheels that are sent because the container has no network access."""
    names = [name.rpartition("/")[2] for name in plan.bundle.files if name.startswith(f"{FOLDER}/")]
    kinds = [" ".join(name.split("-")[:2]) for name in names]
    return (
        f"{len(kinds)} are included, as there is no network: {', '.join(kinds[:_SHOWN])}{_more(kinds)}"
        if kinds
        else "none"
    )


def _sent(plan: JobPlan) -> str:
    names = [name for name in plan.bundle.files if not name.startswith(f"{FOLDER}/")]
    return ", ".join(names[:_SHOWN]) + _more(names)


def _inputs(plan: JobPlan) -> list[str]:
    lines = []
    for name, source in plan.channels.items():
        if isinstance(source, FileSystemInput):
            place = f"{source.file_system_type} {source.file_system_id}{source.directory_path}"
            lines.append(f"{name}: {place} ({source.file_system_access_mode})")
        else:
            mode = _upload(plan.uploads[name]) if source.is_local else source.input_mode or "File"
            only = f", for {', '.join(source.instance_groups)} only" if source.instance_groups else ""
            lines.append(f"{name}: {source.s3_data} ({mode}{only})")
    return lines


def _upload(files: ChannelFiles) -> str:
    text = f"is uploaded: {len(files.taken)} files, {_bytes(files.size)}"
    return text if not files.unsearched else f"{text}, {_bytes(files.unsearched)} of it not scanned for secrets"


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _cost(plan: JobPlan) -> str:
    config, found = plan.config, price(plan)
    if found is None:
        known = load_prices(plan.region).date
        kinds = " or ".join(dict.fromkeys([config.instance_type, *(group.instance_type for group in config.groups)]))
        return f"unknown: {kinds} is not in the table of {known}; refresh it with --refresh-prices"
    kept = config.keep_alive_period_in_seconds
    time = _hours(config.max_run) + (f", and {_hours(kept)} in the warm pool" if kept else "")
    return f"${found.per_hour:,.2f} an hour; at most ${found.at_most:,.2f} ({time}); {found.note}"


def _hours(seconds: int) -> str:
    return f"{seconds / 3600:.3g} h"


def _remarks(plan: JobPlan) -> list[str]:
    config, remarks = plan.config, exposed(plan)
    if config.instance_count > 1 and not find_instance(config.instance_type).efa:
        remarks.append(f"{config.instance_type} has no EFA: hosts exchange gradients over TCP")
    if not plan.image.takes_plugin:
        remarks.append(
            f"the image (PyTorch {plan.image.pytorch}) is older than this package supports, so the package is not installed:"
            " the program runs with the image's packages"
        )
    if plan.image.pytorch is None and config.distributed.kind == "smddp":
        remarks.append("whether your image has SMDDP is unknown; without it, nccl reduces the gradients")
    if any(
        not isinstance(source, FileSystemInput) and source.input_mode == "Pipe" for source in plan.channels.values()
    ):
        remarks.append("a Pipe channel is one named pipe per epoch: the program must read it as such")
    if config.distributed.kind == "smddp" and config.instance_count == 1:
        remarks.append("on one host SMDDP is no faster than nccl: use it there for tests only")
    if config.other_groups:
        remarks.append("the program can tell its group from SM_CURRENT_INSTANCE_GROUP")
    if not config.use_spot_instances and config.checkpoint_s3_uri is None:
        remarks.append("without checkpoint_s3_uri a job that fails leaves no checkpoint behind")
    return remarks
