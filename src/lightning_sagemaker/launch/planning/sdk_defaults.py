# SPDX-License-Identifier: Apache-2.0
"""Defaults from the SageMaker SDK's configuration files, in which an organization sets role, network, keys and tags.

SDK 3 takes some of them and ignores others, and none is in a plan that is made without it: so they are read here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import make_client, translate_aws_errors
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.transfer import split_uri

_FILE = "config.yaml"

_OVERRIDES = ("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", "SAGEMAKER_USER_CONFIG_OVERRIDE")
"""Variables that name the file, its folder, or the ``s3://`` URI of either; the later one's values win."""

_PLACES = {
    "role": ("RoleArn",),
    "environment": ("Environment",),
    "output_kms_key": ("OutputDataConfig", "KmsKeyId"),
    "volume_kms_key": ("ResourceConfig", "VolumeKmsKeyId"),
    "subnets": ("VpcConfig", "Subnets"),
    "security_group_ids": ("VpcConfig", "SecurityGroupIds"),
    "enable_network_isolation": ("EnableNetworkIsolation",),
    "encrypt_inter_container_traffic": ("EnableInterContainerTrafficEncryption",),
    "tags": ("Tags",),
}
"""Key of a job -> its place below ``SageMaker.TrainingJob`` in the files, by the schema of SDK 2.257 and 3.27."""

_WITHOUT_VOLUMES = ("g5", "g6", "p5", "trn1")
"""Families of instances whose disks are their own, which take no key, besides those with a ``d`` (SDK 2.257)."""


def with_defaults(config: JobConfig, content: Mapping[str, object]) -> JobConfig:
    """The job with the files' values for what it does not set; tags are added to its own.

    Args:
        config: The job as described.
        content: Content of the SDK's configuration files.

    Raises:
        LaunchError: If a value is of the wrong type.

    """
    found = {key: value for key, place in _PLACES.items() if (value := _at(content, place)) is not None}
    given = JobConfig.from_mapping(found)
    unset = {key: getattr(given, key) for key in found if getattr(config, key) in (None, (), {})}
    if "tags" in found:
        unset["tags"] = {**given.tags, **config.tags}
    family = config.instance_type.split(".")[1:2]
    if family and ("d" in family[0] or family[0].startswith(_WITHOUT_VOLUMES)):
        unset.pop("volume_kms_key", None)
    return config.changed(**unset)


def _at(content: object, place: tuple[str, ...]) -> object:
    for name in ("SageMaker", "TrainingJob", *place):
        content = content.get(name) if isinstance(content, Mapping) else None
    return content


def sdk_defaults(environment: Mapping[str, str] | None = None) -> Mapping[str, object]:
    """Content of the administrator's and the user's file, in which the latter's values win.

    Args:
        environment: Environment variables; the process's when None.

    Raises:
        LaunchError: If a file that a variable names cannot be read, or a file is not YAML.

    """
    variables = os.environ if environment is None else environment
    content: Mapping[str, object] = {}
    for name, usual in zip(_OVERRIDES, _usual_places(variables), strict=True):
        place = variables.get(name)
        try:
            text = _usual(usual) if place is None else _text(place)
            content = _merged(content, _parsed(text))
        except (OSError, ValueError, TypeError) as error:
            raise LaunchError(
                f"The SageMaker SDK's configuration {place or usual} ({name}) cannot be read: {error}. HINT: correct it, or"
                " remove it."
            ) from error
    return content


def _usual_places(variables: Mapping[str, str]) -> tuple[Path, Path]:
    if sys.platform == "darwin":
        own = Path("Library", "Application Support", "sagemaker", _FILE)
        return Path("/", own), Path.home() / own
    shared = (variables.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)[0]
    own = Path(variables.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(shared, "sagemaker", _FILE), own / "sagemaker" / _FILE


def _usual(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _text(place: str) -> str:
    if place.startswith("s3://"):
        bucket, key = split_uri(place)
        if not key.endswith((".yaml", ".yml")):
            key = f"{key.rstrip('/')}/{_FILE}".lstrip("/")
        with translate_aws_errors(f"Getting {place}"):
            return str(make_client("s3").get_object(Bucket=bucket, Key=key)["Body"].read().decode("utf-8"))
    path = Path(place)
    return (path / _FILE if path.is_dir() else path).read_text(encoding="utf-8")


def _parsed(text: str) -> Mapping[str, object]:
    if not text.strip():
        return {}
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(content, Mapping):
        raise TypeError("it does not hold keys and values")
    return content


def _merged(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, object]:
    found = dict(first)
    for name, value in second.items():
        old = found.get(name)
        found[name] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return found
