# SPDX-License-Identifier: Apache-2.0
"""The description of a training job, as a dataclass and as YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.job.job import CHECKPOINTS, DEFAULT_ROOT
from lightning_sagemaker.launch.spec.distribution import DistributionRequest, parse_distribution
from lightning_sagemaker.launch.spec.groups import InstanceGroup, grouped, parse_groups
from lightning_sagemaker.launch.spec.inputs import Input, parse_inputs, with_weights
from lightning_sagemaker.launch.spec.tags import named_tags
from lightning_sagemaker.simulator.contract import LOG_LEVEL


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """A training job. The names are those of SDK 2's estimators.

    Attributes:
        recipe: Name of a recipe (``lightning-sagemaker ls``); exclusive with ``entry_point``.
        entry_point: Path of the script, ``.py`` or ``.sh``, below ``source_dir``.
        source_dir: Folder that is sent; the script alone when None. With ``git_config``, a folder of the repository. Or
            the ``s3://`` URI of an archive, whose content is sent.
        git_config: ``repo``, and ``branch`` or ``commit``, of a git repository with the source.
        dependencies: Further files and folders that are added to the source; with ``git_config``, of the repository.
        send_anyway: Files that are sent though they are left out by default, by name or pattern (those with credentials
            by name only); and false positives, as ``FILE:LINE`` or ``FILE:*``.
        code_location: ``s3://bucket/prefix`` to which the source is uploaded; the default bucket when None.
        instance_type: Instance type of each host; a list sets ``other_instance_types`` too.
        other_instance_types: Types that are tried in this order where there is no capacity, with the same world size:
            the rest of the list.
        other_regions: Regions that are tried then: the rest of a list that is set as ``region``.
        max_cost: US dollars that the job may cost until ``max_run``, earlier attempts included; a job that may cost
            more is not started.
        instance_count: Number of hosts.
        instance_group: Name of the group of these hosts, to which channels and a distribution may refer.
        other_groups: Further groups of hosts, which take no part in the training: ``instance_group_name``,
            ``instance_type`` and ``instance_count`` of each. ``instance_groups``, a list of all groups, is accepted in
            place of these keys.
        job_queue: Name or ARN of a queue of AWS Batch for training jobs, which then starts the job.
        share_identifier: Share of the queue to which the job belongs, where the queue has shares.
        training_plan: ARN of a training plan, which reserves capacity.
        instance_placement_config: Placement on UltraServers, as the API's dictionary.
        role: ARN or name of the execution role. A dry run and a rehearsal need none.
        region: AWS region; the configured one when None.
        hyperparameters: Strings, numbers, booleans, lists and dictionaries, passed to the program as ``--name value``.
        distribution: Name, dictionary or object; see
            :func:`~lightning_sagemaker.launch.spec.distribution.parse_distribution`.
        recovery: ``in_job`` replaces a process that dies while the others keep training (``supervise`` in place of
            torchrun); with ``restart`` the job ends.
        inputs: Channel name -> S3 URI, local path or object; see
            :func:`~lightning_sagemaker.launch.spec.inputs.parse_inputs`.
        input_mode: Mode of channels that set none: ``File``, ``FastFile`` or ``Pipe``.
        model_uri: ``s3://`` URI of initial weights, which become a channel.
        model_channel_name: Name of that channel.
        use_spot_instances: Whether to use managed spot training.
        max_run: Seconds after which the job is stopped.
        max_wait: Maximum seconds of waiting and running together, for spot jobs; ``max_run`` and an hour when None.
        checkpoint_s3_uri: ``s3://`` prefix with which ``checkpoint_local_path`` is synchronized, and from which it is
            restored. When None, a spot job has one below ``output_path``, any other job none.
        checkpoint_local_path: Folder of the checkpoints in the container.
        output_path: ``s3://bucket/prefix`` of artifacts; SageMaker's default bucket when None.
        output_kms_key: KMS key that encrypts the artifacts.
        disable_output_compression: Whether to upload the model's files uncompressed, not as one archive.
        volume_kms_key: KMS key that encrypts the hosts' disks.
        volume_size: Size of each host's disk in GiB.
        metric_definitions: ``Name`` and ``Regex`` of metrics in the log; those of the recipe's lines when None.
        enable_sagemaker_metrics: Whether SageMaker keeps the metrics as time series; the service's default when None.
        environment: Environment variables of every process.
        container_log_level: Level of SageMaker's programs in the container, as of Python's ``logging``; 20 is INFO.
        image_uri: URI of your own training image.
        pytorch_version: Version of PyTorch, such as ``2.8.0``, which selects AWS's image.
        transformers_version: Version of transformers, which selects Hugging Face's image.
        py_version: Version of Python in the image, such as ``py312``; the image's default when None.
        subnets: IDs of subnets of the job's VPC; set together with ``security_group_ids``.
        security_group_ids: IDs of security groups of the job's VPC.
        enable_network_isolation: Whether the container has no network access; wheels for ``requirements.txt`` are then
            fetched here and sent.
        encrypt_inter_container_traffic: Whether to encrypt traffic between hosts.
        tags: Tags of the job.
        keep_alive_period_in_seconds: Seconds for which the hosts are kept for a next job (warm pool).
        base_job_name: Prefix of the job's name.
        max_retry_attempts: Maximum number of retries after internal errors of the service.
        training_repository_access_mode: ``Vpc`` for an image in a private registry.
        training_repository_credentials_provider_arn: ARN of a Lambda function with credentials for that registry.
        enable_infra_check: Whether the hosts' health is checked before the job starts.
        enable_remote_debug: Whether Session Manager can open a shell in the containers.
        enable_session_tag_chaining: Whether the role's session carries the job's tags.
        experiment_config: Names for SageMaker Experiments, as the API's dictionary.
        tensorboard_output_path: ``s3://`` prefix to which TensorBoard's files are copied during the job.
        tensorboard_local_path: Folder of these files in the container. When None, that to which recipes write, or for a
            script ``/opt/ml/output/tensorboard``.
        debugger_hook_config: Hook of SageMaker Debugger, as the API's dictionary, like the next three.
        debugger_rules: Rules of SageMaker Debugger.
        profiler_config: Configuration of Debugger's profiler.
        profiler_rules: Rules of the profiler.
        include_plugin: Whether to send this package with the source; None: if the image can run it.

    """

    recipe: str | None = None
    entry_point: str | None = None
    source_dir: str | None = None
    git_config: Mapping[str, str] | None = None
    dependencies: tuple[str, ...] = ()
    send_anyway: tuple[str, ...] = ()
    code_location: str | None = None
    instance_type: str = "ml.m5.xlarge"
    other_instance_types: tuple[str, ...] = ()
    other_regions: tuple[str, ...] = ()
    max_cost: float | None = None
    instance_count: int = 1
    instance_group: str | None = None
    other_groups: tuple[Mapping[str, object], ...] = ()
    job_queue: str | None = None
    share_identifier: str | None = None
    training_plan: str | None = None
    instance_placement_config: Mapping[str, object] | None = None
    role: str | None = None
    region: str | None = None
    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    distribution: Any = None
    recovery: str = "restart"
    inputs: Any = None
    input_mode: str = "File"
    model_uri: str | None = None
    model_channel_name: str = "model"
    use_spot_instances: bool = False
    max_run: int = 86_400
    max_wait: int | None = None
    checkpoint_s3_uri: str | None = None
    checkpoint_local_path: str = f"{DEFAULT_ROOT}/{CHECKPOINTS}"
    output_path: str | None = None
    output_kms_key: str | None = None
    disable_output_compression: bool = False
    volume_kms_key: str | None = None
    volume_size: int = 30
    metric_definitions: tuple[Mapping[str, str], ...] | None = None
    enable_sagemaker_metrics: bool | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    container_log_level: int = LOG_LEVEL
    image_uri: str | None = None
    pytorch_version: str | None = None
    transformers_version: str | None = None
    py_version: str | None = None
    subnets: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    enable_network_isolation: bool | None = None
    encrypt_inter_container_traffic: bool | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    keep_alive_period_in_seconds: int | None = None
    base_job_name: str | None = None
    max_retry_attempts: int | None = None
    training_repository_access_mode: str | None = None
    training_repository_credentials_provider_arn: str | None = None
    enable_infra_check: bool | None = None
    enable_remote_debug: bool | None = None
    enable_session_tag_chaining: bool | None = None
    experiment_config: Mapping[str, str] | None = None
    tensorboard_output_path: str | None = None
    tensorboard_local_path: str | None = None
    debugger_hook_config: Mapping[str, object] | None = None
    debugger_rules: tuple[Mapping[str, object], ...] = ()
    profiler_config: Mapping[str, object] | None = None
    profiler_rules: tuple[Mapping[str, object], ...] = ()
    include_plugin: bool | None = None

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> JobConfig:
        """A job from plain values, such as those of a YAML file.

        Raises:
            LaunchError: If a name is unknown or a value is of the wrong type.

        """
        kinds = {one.name: str(one.type) for one in fields(cls)}
        checked: dict[str, Any] = {}
        for name, value in grouped(listed(values)).items():
            if name not in kinds:
                raise LaunchError(f"Unknown job key {name!r}. HINT: {suggestion(str(name), kinds)}")
            checked[name] = _checked(name, kinds[name], value)
        return cls(**checked)

    @classmethod
    def from_yaml(cls, path: str | Path) -> JobConfig:
        """Read a job from a file.

        Raises:
            LaunchError: If the file cannot be read, or does not contain a job.

        """
        import yaml

        try:
            values = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_strict_loader())
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
            words = " ".join(str(error).split())
            raise LaunchError(f"{path} cannot be read: {words}. HINT: give a job's YAML file.") from error
        if not isinstance(values, dict):
            raise LaunchError(
                f"{path} does not hold keys and values. HINT: write, for example, `instance_type: ml.g5.xlarge`."
            )
        return cls.from_mapping(values)

    def to_yaml(self) -> str:
        """The job as YAML, without the keys that have their defaults.

        Raises:
            LaunchError: If a value is an object that YAML cannot represent.

        """
        import yaml

        default = JobConfig()
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        changed = {name: _plain(value) for name, value in values.items() if value != getattr(default, name)}
        try:
            return str(yaml.safe_dump(changed, sort_keys=False))
        except yaml.YAMLError as error:
            raise LaunchError(f"The job cannot be written as YAML: {error}. HINT: use plain values.") from error

    def changed(self, **values: Any) -> JobConfig:
        """A copy of the job with these values changed."""
        return replace(self, **values)

    @property
    def channels(self) -> dict[str, Input]:
        """The parsed inputs, and the channel of the initial weights, by name."""
        found = parse_inputs(self.inputs)
        return found if self.model_uri is None else with_weights(found, self.model_channel_name, self.model_uri)

    @property
    def distributed(self) -> DistributionRequest:
        """The parsed distribution, with the training group if the job has instance groups."""
        request = replace(parse_distribution(self.distribution), recovers=self.recovery == "in_job")
        is_of_group = self.instance_group is not None and request.kind != "none" and not request.groups
        return replace(request, groups=(str(self.instance_group),)) if is_of_group else request

    @property
    def groups(self) -> tuple[InstanceGroup, ...]:
        """The instance groups, the training group first; empty if the job has no groups."""
        if self.instance_group is None:
            return ()
        training = InstanceGroup(self.instance_group, self.instance_type, self.instance_count)
        return parse_groups([training, *self.other_groups])


def _strict_loader() -> Any:
    """YAML's safe loader, but with an error for a duplicate key, of which YAML's own silently keeps the last value."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {twice[0]!r}", node.start_mark)
            return super().construct_mapping(node, deep)

    return Loader


LISTS = {"instance_type": "other_instance_types", "region": "other_regions"}
"""Key whose value may be a list, or a string with commas -> key for all but the first item."""


def listed(values: Mapping[str, object]) -> dict[str, object]:
    """The same values, with each list of instance types or regions split into its first item and the others."""
    found = dict(values)
    for name, others in LISTS.items():
        value = found.get(name)
        if isinstance(value, str) and "," in value:
            value = [one.strip() for one in value.split(",") if one.strip()]
        if isinstance(value, (list, tuple)) and value:
            found[name], found[others] = value[0], list(value[1:])
    return found


def _checked(name: str, kind: str, value: object) -> object:
    """``value`` with lists as tuples; raise LaunchError if it is not of the field's type."""
    if kind == "Any" or (value is None and "None" in kind):
        return value
    wanted: Any
    if kind.startswith("tuple"):
        if isinstance(value, str):
            value = (value,)
        wanted, words = (list, tuple), "a list"
    elif kind.startswith("Mapping"):
        if name == "tags":
            value = named_tags(value)
        elif (
            name == "hyperparameters" and isinstance(value, Mapping) and not all(isinstance(key, str) for key in value)
        ):
            value = {str(key): one for key, one in value.items()}
        wanted, words = Mapping, "keys and values"
    else:
        wanted, words = {
            "str": (str, "text"),
            "int": (int, "an integer"),
            "float": ((int, float), "a number"),
            "bool": (bool, "true or false"),
        }[kind.split(" ")[0]]
    if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
        raise LaunchError(f"{name}={value!r} was set. HINT: it must be {words}.")
    entries: Any = value if kind.startswith("tuple") else ()
    of, words = (Mapping, "keys and values") if kind.startswith("tuple[Mapping") else ((str, os.PathLike), "strings")
    if not all(isinstance(one, of) for one in entries):
        raise LaunchError(f"{name}={value!r} was set. HINT: it must be a list of {words}.")
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "__dataclass_fields__"):
        return {
            one.name: _plain(getattr(value, one.name)) for one in fields(value) if getattr(value, one.name) is not None
        }
    return value
