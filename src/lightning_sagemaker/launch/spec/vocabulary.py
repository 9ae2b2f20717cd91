# SPDX-License-Identifier: Apache-2.0
"""Arguments and methods of SDK 2's estimators: their equivalents here, or why they are not supported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.debugger import ARGUMENTS, debugger_values

POSITIONS = {
    "Estimator": ("entry_point",),
    "PyTorch": (
        "entry_point", "framework_version", "py_version", "source_dir", "hyperparameters", "image_uri", "distribution",
    ),
    "HuggingFace": (
        "py_version", "entry_point", "transformers_version", "tensorflow_version", "pytorch_version", "source_dir",
        "hyperparameters", "image_uri", "distribution",
    ),
}  # fmt: skip
"""Class -> its positional arguments; those of subclasses are SDK 2.257's (``inspect.signature``)."""

ALIASES = {
    "framework_version": "pytorch_version",
    "keep_alive_period": "keep_alive_period_in_seconds",
    "train_instance_type": "instance_type",
    "train_instance_count": "instance_count",
    "train_volume_size": "volume_size",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
    "train_use_spot_instances": "use_spot_instances",
}
"""Argument of SDK 2 or SDK 1 -> name in :class:`~lightning_sagemaker.launch.spec.config.JobConfig`."""

_REFUSED = {
    "compiler_config": "AWS ended SageMaker Training Compiler with PyTorch 1.13",
    "container_arguments": "the container's first process is this package's, which forwards signals",
    "container_entry_point": "the container's first process is this package's, which forwards signals",
    "recipe_overrides": "HyperPod recipes are configurations of NeMo, not of Lightning",
    "tensorflow_version": "this package trains with PyTorch",
    "training_recipe": "HyperPod recipes are configurations of NeMo, not of Lightning",
}
"""Unsupported argument -> reason; it is ignored if it is None, False or empty."""

NOT_HERE = {
    "compile_model": "AWS ended SageMaker Neo for PyTorch 2. HINT: export the model and compile it for its hardware.",
    "create_model": "SDK 3 creates models. HINT: deploy, or sagemaker.serve.ModelBuilder with model_data.",
    "delete_endpoint": "endpoints outlive the estimator. HINT: boto3's delete_endpoint with the name that deploy gave.",
    "disable_profiling": "it is set before fit. HINT: disable_profiler=True, or boto3's update_training_job.",
    "enable_default_profiling": "it is set before fit. HINT: profiler_config, or boto3's update_training_job.",
    "get_app_url": "there is no TensorBoard application. HINT: tensorboard_output_config, and TensorBoard on that path.",
    "latest_job_debugger_artifacts_path": "the job's description has it. HINT: "
    "latest_training_job.description['DebugHookConfig'].",
    "latest_job_profiler_artifacts_path": "the job's description has it. HINT: "
    "latest_training_job.description['ProfilerConfig'].",
    "prepare_workflow_for_training": "pipelines are SDK 3's. HINT: ModelTrainer with distributed=SMDDP().",
    "register": "SDK 3 registers models. HINT: sagemaker.core.resources.ModelPackage with model_data.",
    "rule_job_summary": "the job has it. HINT: latest_training_job.rule_job_summary().",
    "training_image": "it is no ModelTrainer, which SDK 3's HyperparameterTuner takes. HINT: training_image_uri() returns"
    " the image; tune a ModelTrainer.",
    "training_job_analytics": "it came from CloudWatch. HINT: latest_training_job.describe(), or logs().",
    "transformer": "SDK 3 creates transform jobs. HINT: sagemaker.core.resources.TransformJob with model_data.",
    "update_profiler": "it is set before fit. HINT: profiler_config, or boto3's update_training_job.",
}
"""Methods of SDK 2's estimators that are not supported, and what to use instead."""


@dataclass(frozen=True)
class TensorBoardOutputConfig:
    """Destination to which SageMaker copies TensorBoard's files during the job.

    Args:
        s3_output_path: ``s3://bucket/prefix``.
        container_local_output_path: Folder to which the program writes the files; ``/opt/ml/output/tensorboard`` when None.

    """

    s3_output_path: str
    container_local_output_path: str | None = None


_NAMES = tuple(one.name for one in fields(JobConfig))
_DEFAULTS = JobConfig()


def by_position(kind: str, given: tuple[object, ...], arguments: Mapping[str, object]) -> dict[str, object]:
    """Positional and named arguments as one dictionary by name.

    Raises:
        LaunchError: If there are too many positional arguments, or one is given twice.

    """
    names = POSITIONS[kind]
    if len(given) > len(names):
        raise LaunchError(
            f"{kind} was given {len(given)} positional arguments. HINT: it takes {', '.join(names)}; name all others."
        )
    found = dict(zip(names, given, strict=False))
    for name in found:
        if name in arguments:
            raise LaunchError(f"{kind} was given {name} twice, by position and by name. HINT: leave one out.")
    return {**found, **arguments}


def job_values(arguments: Mapping[str, object]) -> dict[str, object]:
    """Values of a :class:`~lightning_sagemaker.launch.spec.config.JobConfig`.

    Args:
        arguments: Arguments of an estimator, by SDK 2's or this package's names; those that are None are left out.

    Raises:
        LaunchError: If an argument is unknown or not supported.

    """
    values = debugger_values(arguments)
    for name, value in arguments.items():
        if value is None or name in ARGUMENTS:
            continue
        if name in _REFUSED:
            if value:
                raise LaunchError(f"{name} was set. {_capital(_REFUSED[name])}. HINT: leave it out.")
        elif name == "tensorboard_output_config":
            values.update(_tensorboard(value))
        else:
            values[ALIASES.get(name, name)] = value
    for name in values:
        if name not in (*_NAMES, "instance_groups"):
            raise LaunchError(f"The estimator was given {name!r}. HINT: {suggestion(name, [*_NAMES, *ALIASES])}")
    if "base_job_name" in values:
        values["base_job_name"] = str(values["base_job_name"])
    return values


_SEVERAL = {
    "disable_profiler": ("profiler_config",),
    "instance_groups": ("instance_group", "other_groups"),
    "rules": ("debugger_rules", "profiler_rules"),
    "tensorboard_output_config": ("tensorboard_output_path", "tensorboard_local_path"),
}
"""Argument that stands for keys of other names, or for several -> these."""

SETTABLE = frozenset({*_NAMES, *ALIASES, *_REFUSED, *ARGUMENTS, *_SEVERAL})
"""Names of the arguments, each of which may also be set as an attribute of an estimator."""


def with_value(config: JobConfig, name: str, value: object) -> JobConfig:
    """The job with one more argument of an estimator, given after the others; None is the argument's default.

    Raises:
        LaunchError: As :func:`job_values`.

    """
    given = JobConfig.from_mapping(job_values({name: value}))
    keys = {
        *_SEVERAL.get(name, (ALIASES.get(name, name),)),
        *(key for key in _NAMES if getattr(given, key) != getattr(_DEFAULTS, key)),
    }
    return config.changed(**{key: getattr(given, key) for key in keys if key in _NAMES})


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _tensorboard(value: object) -> dict[str, object]:
    """Values of a job from a ``TensorBoardOutputConfig`` of an SDK or of this package, or a mapping of its arguments."""
    given = dict(value) if isinstance(value, Mapping) else {name: getattr(value, name, None) for name in _TENSORBOARD}
    places = [given.get(name) for name in ("s3_output_path", "S3OutputPath") if given.get(name)]
    folders = [given.get(name) for name in _TENSORBOARD[1:] if isinstance(given.get(name), str)]
    if not places:
        raise LaunchError(
            f'tensorboard_output_config={value!r} was set. HINT: write {{"s3_output_path": "s3://bucket/prefix"}}.'
        )
    return {"tensorboard_output_path": places[0], "tensorboard_local_path": folders[0] if folders else None}


_TENSORBOARD = ("s3_output_path", "container_local_output_path", "local_path", "LocalPath")
