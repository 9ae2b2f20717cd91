# SPDX-License-Identifier: Apache-2.0
"""The requested distribution: ``SM_FRAMEWORK_PARAMS`` (classic), ``SM_DISTRIBUTED_CONFIG`` (SDK 3), hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightning_sagemaker.job.source import Source, decode_or_keep, is_true
from lightning_sagemaker.job.types import Distribution, SageMakerJobError

SMDDP_FLAG = "sagemaker_distributed_dataparallel_enabled"

_FLAGS = {
    "sagemaker_mpi_enabled": Distribution.MPI,
    "sagemaker_pytorch_ddp_enabled": Distribution.DDP,
    "sagemaker_torch_distributed_enabled": Distribution.TORCH_DISTRIBUTED,
}
"""Flags in the order in which the container checks them. SMDDP's, the last one, applies whatever the others are."""

_RESERVED = ("_tuning_objective_metric", "default_user_module_name")
"""Hyperparameters that the service adds and that do not begin with ``sagemaker_``."""

SDK_CHANNELS = ("code", "sm_drivers")
"""Channels that SDK 3 adds to the user's."""


@dataclass(frozen=True)
class Intent:
    """The requested configuration, whether or not it was applied."""

    distribution: Distribution
    hyperparameters: Mapping[str, object]
    model_parallel_parameters: Mapping[str, object]


def read_intent(source: Source) -> Intent:
    """Read the requested configuration.

    Raises:
        SageMakerJobError: If a variable or file is malformed.

    """
    everything = _all_hyperparameters(source)
    hyperparameters = {k: v for k, v in everything.items() if not k.startswith("sagemaker_") and k not in _RESERVED}
    from_file = {k: v for k, v in everything.items() if k.startswith("sagemaker_")}
    framework = source.json("SM_FRAMEWORK_PARAMS", dict)
    flags = from_file if framework is None else {**from_file, **framework}
    origin = "hyperparameters" if framework is None else "SM_FRAMEWORK_PARAMS"
    config = source.json("SM_DISTRIBUTED_CONFIG", dict)
    parallel = _model_parallel_parameters(source, hyperparameters, config)
    return Intent(
        distribution=_distribution(source, parallel, flags, origin, hyperparameters, config),
        hyperparameters=hyperparameters,
        model_parallel_parameters=parallel,
    )


def read_channels(source: Source) -> Mapping[str, Path]:
    """Channel name -> its folder, without the channels that the SDK adds for itself.

    Raises:
        SageMakerJobError: If the list of channels is malformed.

    """
    names = source.names("SM_CHANNELS")
    origin = "SM_CHANNELS"
    if names is None:
        config = source.file("inputdataconfig")
        if config is None:
            return {}
        names, origin = tuple(config), "inputdataconfig.json"
    if "sm_drivers" in names:
        names = tuple(name for name in names if name not in SDK_CHANNELS)
    return source.found("channels", origin, {name: _channel_folder(source, name) for name in names})


def _channel_folder(source: Source, name: str) -> Path:
    upper = name.upper()  # the toolkit keeps dashes in the variable's name, SDK 3 does not
    folder = source.text(f"SM_CHANNEL_{upper}") or source.text(f"SM_CHANNEL_{upper.replace('-', '_')}")
    return source.root / "input" / "data" / name if folder is None else Path(folder)


def _all_hyperparameters(source: Source) -> dict[str, object]:
    """All hyperparameters: the file also has the service's; ``SM_HPS``, decoded by the container, only the user's."""
    file = source.file("hyperparameters")
    in_file = {name: decode_or_keep(value) for name, value in (file or {}).items()}
    decoded = source.json("SM_HPS", dict)
    if decoded is None:
        return in_file if file is None else source.found("hyperparameters", "hyperparameters.json", in_file)
    service = {name: value for name, value in in_file.items() if name.startswith("sagemaker_")}
    return source.found("hyperparameters", "SM_HPS", {**service, **decoded})


def _model_parallel_parameters(
    source: Source, hyperparameters: dict[str, object], config: dict[str, object] | None
) -> dict[str, object]:
    """``mp_parameters`` of either generation; empty if there are none."""
    given = source.json("SM_HP_MP_PARAMETERS", dict)
    if given:
        return source.found("model_parallel_parameters", "SM_HP_MP_PARAMETERS", given)
    requested = hyperparameters.get("mp_parameters")
    if isinstance(requested, dict) and requested:
        return source.found("model_parallel_parameters", "hyperparameter mp_parameters", requested)
    if requested and not isinstance(requested, dict):  # the default in Hugging Face's TrainingArguments is empty
        raise SageMakerJobError(
            f"Hyperparameter mp_parameters is {requested!r}. HINT: set an object, such as"
            ' {"partitions": 2, "microbatches": 4} or {"tensor_parallel_degree": 8}.'
        )
    smp = (config or {}).get("smp")
    degrees = {name: value for name, value in smp.items() if value is not None} if isinstance(smp, dict) else {}
    return source.found("model_parallel_parameters", "SM_DISTRIBUTED_CONFIG", degrees) if degrees else {}


def _distribution(
    source: Source,
    parallel: dict[str, object],
    flags: dict[str, object],
    origin: str,
    hyperparameters: dict[str, object],
    config: dict[str, object] | None,
) -> Distribution:
    if parallel:
        return source.found("distribution", source.origins["model_parallel_parameters"], Distribution.MODEL_PARALLEL)
    if is_true(flags.get(SMDDP_FLAG)):
        return source.found("distribution", origin, Distribution.SMDDP)
    if (config or {}).get("distribution") == Distribution.SMDDP.value:
        return source.found("distribution", "SM_DISTRIBUTED_CONFIG", Distribution.SMDDP)
    if hyperparameters.get("distribution") == Distribution.SMDDP.value:
        return source.found("distribution", "hyperparameter distribution", Distribution.SMDDP)
    for flag, distribution in _FLAGS.items():
        if is_true(flags.get(flag)):
            return source.found("distribution", origin, distribution)
    if config is not None:
        kind = Distribution.MPI if "mpi_additional_options" in config else Distribution.TORCH_DISTRIBUTED
        return source.found("distribution", "SM_DISTRIBUTED_CONFIG", kind)
    return Distribution.NONE
