# SPDX-License-Identifier: Apache-2.0
"""Sources of a channel's data: S3, a shared file system, or a folder on this machine."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.job.intent import SDK_CHANNELS
from lightning_sagemaker.launch.spec.carried import Json
from lightning_sagemaker.simulator.contract import invalid_channel

INPUT_MODES = ("File", "FastFile", "Pipe")
S3_ADDRESS = re.compile(r"s3://[A-Za-z0-9._-]{3,255}(/.*)?")
"""Names of buckets as botocore accepts them: old ones have capitals and underscores."""

MODEL_CONTENT = "application/x-sagemaker-model"
"""Content type of the channel of ``model_uri``, as in SDK 2."""

_FILE_SYSTEM = re.compile(r"fs-[0-9a-f]{8,}")

_SHOWN = 200
"""Maximum characters of a path in a message."""

DEFAULT_DISTRIBUTION = "FullyReplicated"

DEFAULT_CHANNEL = "training"
"""Name of the channel of a single unnamed input, as in SDK 2."""


@dataclass(frozen=True)
class ShuffleConfig:
    """Shuffling of the objects of a ``Pipe`` or sharded channel in each epoch.

    Args:
        seed: Seed of the shuffled order.

    """

    seed: int


@dataclass(frozen=True)
class TrainingInput:
    """Objects in S3, or a local folder that is uploaded. The order of the arguments is SDK 2's.

    Args:
        s3_data: ``s3://bucket/prefix``, or a local path.
        distribution: ``FullyReplicated``, also if None, or ``ShardedByS3Key`` for a shard of the objects on each host.
        compression: ``None`` or ``Gzip`` (``Pipe`` only).
        content_type: MIME type; None unless the program needs it.
        record_wrapping: ``RecordIO`` or ``None`` (``Pipe`` only).
        s3_data_type: ``S3Prefix``, ``ManifestFile`` or ``AugmentedManifestFile``.
        instance_groups: Names of the groups of hosts that get the data; None for all.
        input_mode: ``File`` copies before training, ``FastFile`` streams on read, ``Pipe`` is a named pipe; None: the job's.
        attribute_names: Attributes of an augmented manifest that are read.
        target_attribute_name: Name of the label attribute, for libraries that read it; not part of a request.
        shuffle_config: Shuffles the objects.
        hub_access_config: Access to a model in a hub, as the API's dictionary.
        model_access_config: Acceptance of the model's license, as the API's dictionary.

    """

    s3_data: str
    distribution: str | None = DEFAULT_DISTRIBUTION
    compression: str | None = None
    content_type: str | None = None
    record_wrapping: str | None = None
    s3_data_type: str = "S3Prefix"
    instance_groups: Sequence[str] | None = None
    input_mode: str | None = None
    attribute_names: Sequence[str] | None = None
    target_attribute_name: str | None = None
    shuffle_config: ShuffleConfig | None = None
    hub_access_config: Mapping[str, object] | None = None
    model_access_config: Mapping[str, object] | None = None

    @property
    def is_local(self) -> bool:
        """Whether the data is on this machine and will be uploaded."""
        return not self.s3_data.startswith("s3://")


@dataclass(frozen=True)
class FileSystemInput:
    """A folder of Amazon FSx for Lustre or Amazon EFS; the job then needs subnets and security groups.

    Args:
        file_system_id: ID, such as ``fs-0123456789abcdef0``.
        file_system_type: ``FSxLustre`` or ``EFS``.
        directory_path: Absolute path; for FSx it begins with the file system's mount name.
        file_system_access_mode: ``ro`` or ``rw``.
        content_type: MIME type; None unless the program needs it.

    """

    file_system_id: str
    file_system_type: str
    directory_path: str
    file_system_access_mode: str = "ro"
    content_type: str | None = None


Input = TrainingInput | FileSystemInput

_TEXT, _NAMES, _API = "a string", "a list of names", "a dictionary as in the API"
_FORMS = {
    "instance_groups": _NAMES,
    "attribute_names": _NAMES,
    "shuffle_config": "a dictionary with an integer as seed",
    "hub_access_config": _API,
    "model_access_config": _API,
}
"""Options of an input that are not strings -> their form, as a message names it."""


def parse_inputs(value: object) -> dict[str, Input]:
    """Parse the inputs of a job: channel name -> source of its data.

    Args:
        value: None; one input for the channel ``training``; a mapping of channels to inputs; or a list of SDK 3's
            channels. An input is an S3 URI, a local path, one of the classes above, an object of an SDK (``TrainingInput``,
            ``FileSystemInput``, ``InputData``, ``Channel``), or a mapping of arguments.

    Raises:
        LaunchError: If an input is none of these, or a path, URI or value is invalid.

    """
    named = named_inputs(value).items()
    return {_check_channel(name): _check(name, _usual(_parse(name, one))) for name, one in named}


def _usual(value: Input) -> Input:
    """With a path in place of its ``file://`` address, and the distribution that SDK 2 writes as None."""
    if isinstance(value, FileSystemInput):
        return value
    distribution = value.distribution or DEFAULT_DISTRIBUTION
    return replace(value, s3_data=value.s3_data.removeprefix("file://"), distribution=distribution)


def with_weights(inputs: Mapping[str, Input], channel: str, uri: str) -> dict[str, Input]:
    """The inputs and the channel of the initial weights.

    Raises:
        LaunchError: If the inputs have a channel of this name, or the URI is invalid.

    """
    if channel in inputs:
        raise LaunchError(
            f"Channel {channel!r} is among the inputs, and model_uri has it too. HINT: set another model_channel_name."
        )
    weights = {"s3_data": uri, "input_mode": "File", "content_type": MODEL_CONTENT}
    return {**inputs, **parse_inputs({channel: weights})}


def named_inputs(value: object) -> Mapping[str, object]:
    """Channel name -> unparsed input; a single unnamed input is that of ``training``."""
    if value is None:
        return {}
    if isinstance(value, Mapping) and not _is_arguments(value):
        return value
    if isinstance(value, (list, tuple)) and value and all(map(_is_channel, value)):
        if len({one.channel_name for one in value}) < len(value):
            raise LaunchError(f"Two channels of one name were given: {value!r}. HINT: name each channel once.")
        return {one.channel_name: one for one in value}
    return {DEFAULT_CHANNEL: value}


def _is_arguments(value: Mapping[str, object]) -> bool:
    return "s3_data" in value or "file_system_id" in value


def _parse(channel: str, value: object) -> Input:
    if isinstance(value, (TrainingInput, FileSystemInput)):
        return value
    if isinstance(value, (str, os.PathLike)):
        return TrainingInput(os.fspath(value))
    if isinstance(value, Mapping) and _is_arguments(value):
        kind = TrainingInput if "s3_data" in value else FileSystemInput
        known = [field.name for field in fields(kind)]
        for name in value:
            if name not in known:
                raise LaunchError(
                    f"Channel {channel!r} has the unknown key {name!r}. HINT: {suggestion(str(name), known)}"
                )
        for name, one in value.items():
            if one is not None and not _fits(name, one):
                raise LaunchError(
                    f"Channel {channel!r} has {name}={one!r}. HINT: it must be {_FORMS.get(name, _TEXT)}."
                )
        try:
            seed = value.get("shuffle_config")
            shuffled = {"shuffle_config": ShuffleConfig(**seed)} if isinstance(seed, Mapping) else {}
            return kind(**{**value, **shuffled})
        except TypeError as error:
            raise LaunchError(f"Channel {channel!r} is {dict(value)!r}: {error}. HINT: give what is missing.") from None
    if hasattr(value, "file_system_id"):  # SDK 3's sagemaker.core.inputs.FileSystemInput
        return FileSystemInput(**{field.name: getattr(value, field.name) for field in fields(FileSystemInput)})
    config = _api_form(value) if _is_channel(value) else getattr(value, "config", None)  # which SDK 2's objects keep
    if isinstance(config, Mapping):
        with contextlib.suppress(KeyError):  # of SDK 3's DatasetSource
            return _of_api(config)
    raise LaunchError(
        f"Channel {channel!r} is {value!r}. HINT: give s3://bucket/prefix, a local path, TrainingInput or FileSystemInput."
    )


def _fits(name: str, value: object) -> bool:
    form = _FORMS.get(name, _TEXT)
    if form is _NAMES:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)
    if name == "shuffle_config":
        return isinstance(value, ShuffleConfig) or (isinstance(value, Mapping) and type(value.get("seed")) is int)
    return isinstance(value, Mapping if form is _API else str)


def _is_channel(value: object) -> bool:
    return hasattr(value, "channel_name") and hasattr(value, "data_source")  # SDK 3's InputData and Channel


def _api_form(value: object) -> Json:
    """An object of SDK 3 as the API's dictionary."""
    return {
        name.title().replace("_", ""): _api_form(item) if hasattr(item, "model_dump") else item
        for name, item in vars(value).items()
        if type(item).__name__ not in ("Unassigned", "NoneType")
    }


def _of_api(config: Json) -> Input:
    source = config["DataSource"]
    if isinstance(source, str):
        return TrainingInput(source, content_type=config.get("ContentType"))
    found = source.get("FileSystemDataSource", source)
    if "FileSystemId" in found:
        return FileSystemInput(
            found["FileSystemId"],
            found["FileSystemType"],
            found["DirectoryPath"],
            found.get("FileSystemAccessMode", "ro"),
            config.get("ContentType"),
        )
    found = source.get("S3DataSource", source)
    seed = config.get("ShuffleConfig", {}).get("Seed")
    return TrainingInput(
        found["S3Uri"],
        distribution=found.get("S3DataDistributionType"),
        compression=config.get("CompressionType"),
        content_type=config.get("ContentType"),
        record_wrapping=config.get("RecordWrapperType"),
        s3_data_type=found.get("S3DataType", "S3Prefix"),
        instance_groups=found.get("InstanceGroupNames"),
        input_mode=config.get("InputMode"),
        attribute_names=found.get("AttributeNames"),
        shuffle_config=None if seed is None else ShuffleConfig(seed),
        hub_access_config=found.get("HubAccessConfig"),
        model_access_config=found.get("ModelAccessConfig"),
    )


def _check_channel(name: object) -> str:
    if not isinstance(name, str):
        raise LaunchError(f"Channel {name!r} was set. HINT: its name must be a string.")
    if (problem := invalid_channel(name)) is not None:
        raise LaunchError(problem)
    if name in SDK_CHANNELS:
        raise LaunchError(f"Channel {name!r} is reserved for the SDK. HINT: choose another name.")
    return name


def is_there(path: str) -> bool:
    """Whether a file or folder exists; False also for a path that the system rejects."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _check(channel: str, value: Input) -> Input:
    if isinstance(value, FileSystemInput):
        return _check_file_system(channel, value)
    if value.is_local and not is_there(value.s3_data):
        raise LaunchError(
            f"Channel {channel!r} is {value.s3_data[:_SHOWN]!r}, which is not on this machine. HINT: give an existing path,"
            " or s3://bucket/prefix."
        )
    if value.shuffle_config is not None and not isinstance(getattr(value.shuffle_config, "seed", None), int):
        raise LaunchError(
            f"Channel {channel!r} has shuffle_config={value.shuffle_config!r}. HINT: write ShuffleConfig(seed=1)."
        )
    if value.is_local and value.input_mode not in (None, "File"):
        raise LaunchError(
            f"Channel {channel!r} has input_mode={value.input_mode!r}, but its data is on this machine. HINT: upload it and"
            " give s3://bucket/prefix."
        )
    if not value.is_local and not S3_ADDRESS.fullmatch(value.s3_data):
        raise LaunchError(f"Channel {channel!r} is {value.s3_data!r}. HINT: write s3://bucket/prefix.")
    for what, given, known in (
        ("distribution", value.distribution, ("FullyReplicated", "ShardedByS3Key")),
        ("input_mode", value.input_mode, (None, *INPUT_MODES)),
        ("compression", value.compression, (None, "None", "Gzip")),
        ("record_wrapping", value.record_wrapping, (None, "None", "RecordIO")),
        ("s3_data_type", value.s3_data_type, ("S3Prefix", "ManifestFile", "AugmentedManifestFile")),
    ):
        if given not in known:
            choices = ", ".join(name for name in known if name)
            raise LaunchError(f"Channel {channel!r} has {what}={given!r}. HINT: choose one of {choices}.")
    if value.input_mode == "FastFile" and value.s3_data_type != "S3Prefix":
        raise LaunchError(f"Channel {channel!r}: FastFile reads a prefix only. HINT: leave s3_data_type out.")
    return value


def _check_file_system(channel: str, value: FileSystemInput) -> FileSystemInput:
    problem = None
    if not _FILE_SYSTEM.fullmatch(value.file_system_id):
        problem = f"file_system_id={value.file_system_id!r}. HINT: use an id such as fs-0123456789abcdef0"
    elif value.file_system_type not in ("FSxLustre", "EFS"):
        problem = f"file_system_type={value.file_system_type!r}. HINT: write FSxLustre or EFS"
    elif not value.directory_path.startswith("/"):
        problem = f"directory_path={value.directory_path!r}. HINT: it must be absolute, such as /fsx/data"
    elif value.file_system_access_mode not in ("ro", "rw"):
        problem = f"file_system_access_mode={value.file_system_access_mode!r}. HINT: write ro or rw"
    if problem is not None:
        raise LaunchError(f"Channel {channel!r} has {problem}.")
    return value
