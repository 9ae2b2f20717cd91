# SPDX-License-Identifier: Apache-2.0
"""A training job as it is described: a dataclass, and the same as YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.launch.spec.distribution import DistributionRequest, parse_distribution
from lightning_sagemaker.launch.spec.groups import InstanceGroup, grouped, parse_groups
from lightning_sagemaker.launch.spec.inputs import Input, parse_inputs

MODEL_CONTENT = "application/x-sagemaker-model"
"""Content type of the channel of ``model_uri``, as SDK 2 gives it."""


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """A training job. The words are those of SDK 2's estimators.

    Attributes:
        recipe: Name of a recipe (``lightning-sagemaker ls``), or
        entry_point: a script, ``.py`` or ``.sh``, below ``source_dir``.
        source_dir: Folder that is sent; the script alone when None. With ``git_config``, a folder of the repository. Of
            a ``s3://`` address of an archive, what is in that.
        git_config: ``repo``, and ``branch`` or ``commit``: the source is taken from there.
        dependencies: Further files and folders that are added to the source.
        send_anyway: Files that are sent though they are left out by default, by name or pattern (those with credentials
            by name only); and false positives, as ``FILE:LINE`` or ``FILE:*``.
        code_location: ``s3://bucket/prefix`` to which the source is uploaded; the default bucket when None.
        instance_type: Instance type of each host; of a list, the first.
        other_instance_types: Tried in this order where there is no capacity, with as many processes: the rest of the
            list.
        other_regions: Tried then: the rest of a list given for ``region``.
        max_cost: US dollars that the job may cost until ``max_run``, earlier attempts included; one that may cost more
            is not started.
        instance_count: Hosts.
        instance_group: A name for them, which channels and a distribution may use.
        other_groups: Further groups of hosts, which take no part in the training: ``instance_group_name``,
            ``instance_type`` and ``instance_count`` of each. ``instance_groups``, a list of all, is taken in place of
            these.
        job_queue: Name or ARN of a queue of AWS Batch for training jobs, which starts the job, with
        share_identifier: the share that it counts for, where the queue has shares.
        training_plan: ARN of a plan with reserved capacity.
        instance_placement_config: Placement on UltraServers, in the API's words.
        role: ARN or name of the execution role. None in a dry run.
        region: None for the one that AWS is configured with.
        hyperparameters: Texts, numbers, booleans, lists and dictionaries that reach the program as ``--name value``.
        distribution: See :func:`~lightning_sagemaker.launch.spec.distribution.parse_distribution`.
        recovery: ``in_job`` replaces a process that dies while the others train on (``supervise`` in place of
            torchrun); ``restart`` ends the job with it.
        inputs: See :func:`~lightning_sagemaker.launch.spec.inputs.parse_inputs`.
        input_mode: Mode of channels that do not say: ``File``, ``FastFile`` or ``Pipe``.
        model_uri: ``s3://`` place of weights to begin with, as
        model_channel_name: a channel of this name.
        use_spot_instances: Managed spot training.
        max_run: Seconds after which the job is stopped.
        max_wait: Seconds for waiting and running together, of spot jobs; ``max_run`` and an hour when None.
        checkpoint_s3_uri: Where ``checkpoint_local_path`` is kept during the job and restored from. Spot jobs have one
            below ``output_path`` when None.
        checkpoint_local_path: In the container.
        output_path: ``s3://bucket/prefix`` of artefacts; SageMaker's default bucket when None.
        output_kms_key: Encrypts them.
        disable_output_compression: The model's files as they are in place of one archive.
        volume_kms_key: Encrypts the hosts' disks.
        volume_size: GiB of each host's disk.
        metric_definitions: ``Name`` and ``Regex`` of metrics in the log; those of the recipe's lines when None.
        enable_sagemaker_metrics: Whether SageMaker keeps them as time series; None leaves it to the service, which
            does.
        environment: Variables of every process.
        container_log_level: Level of SageMaker's programs in the container, as of Python's ``logging``; 20 is INFO.
        image_uri: Address of an image of your own.
        pytorch_version: Chooses AWS's image.
        transformers_version: Chooses Hugging Face's image.
        py_version: Such as ``py312``; the image's own when None.
        subnets: Subnets of the job's VPC, with
        security_group_ids: its security groups.
        enable_network_isolation: No network in the container; wheels for ``requirements.txt`` are fetched here and
            sent.
        encrypt_inter_container_traffic: Between hosts.
        tags: Tags of the job.
        keep_alive_period_in_seconds: Keeps the hosts for a next job (warm pool).
        base_job_name: The job's name begins with it.
        max_retry_attempts: After errors of the service itself.
        training_repository_access_mode: ``Vpc`` where the image is in a private registry, with
        training_repository_credentials_provider_arn: a Lambda function that logs in to it.
        enable_infra_check: Hosts are examined before the job begins.
        enable_remote_debug: A shell in the containers through Session Manager.
        enable_session_tag_chaining: The role's session carries the job's tags.
        experiment_config: Names for SageMaker Experiments, in the API's words.
        tensorboard_output_path: ``s3://`` place to which TensorBoard's files are copied during the job: those of a
            recipe, or what a script writes below
        tensorboard_local_path: in the container; ``/opt/ml/output/tensorboard`` when None.
        debugger_hook_config: Hook of SageMaker Debugger, in the API's words, as the next three.
        debugger_rules: Its rules.
        profiler_config: Its profiler.
        profiler_rules: The profiler's rules.
        include_plugin: Whether this package is sent along; None: if the image can run it.

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
    checkpoint_local_path: str = "/opt/ml/checkpoints"
    output_path: str | None = None
    output_kms_key: str | None = None
    disable_output_compression: bool = False
    volume_kms_key: str | None = None
    volume_size: int = 30
    metric_definitions: tuple[Mapping[str, str], ...] | None = None
    enable_sagemaker_metrics: bool | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    container_log_level: int = 20
    image_uri: str | None = None
    pytorch_version: str | None = None
    transformers_version: str | None = None
    py_version: str | None = None
    subnets: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    enable_network_isolation: bool = False
    encrypt_inter_container_traffic: bool = False
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
            LaunchError: If a name is unknown or a value is of the wrong kind.

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
            LaunchError: If there is no such file, or it does not hold a job.

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
        """The job as YAML, without what is at its default.

        Raises:
            LaunchError: If a value is an object that YAML has no words for.

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
        """The same job with other values."""
        return replace(self, **values)

    @property
    def channels(self) -> dict[str, Input]:
        """The inputs, read, and the weights to begin with."""
        found = parse_inputs(self.inputs)
        if self.model_uri is not None:
            weights = {"s3_data": self.model_uri, "input_mode": "File", "content_type": MODEL_CONTENT}
            found |= parse_inputs({self.model_channel_name: weights})
        return found

    @property
    def distributed(self) -> DistributionRequest:
        """The distribution, read, with the group of hosts that it is for where hosts are in groups."""
        request = replace(parse_distribution(self.distribution), recovers=self.recovery == "in_job")
        is_of_group = self.instance_group is not None and request.kind != "none" and not request.groups
        return replace(request, groups=(str(self.instance_group),)) if is_of_group else request

    @property
    def groups(self) -> tuple[InstanceGroup, ...]:
        """The groups of hosts, first the one that trains; none where all hosts are of one type and have no name."""
        if self.instance_group is None:
            return ()
        training = InstanceGroup(self.instance_group, self.instance_type, self.instance_count)
        return parse_groups([training, *self.other_groups])


def _strict_loader() -> Any:
    """YAML's safe loader, which takes the last of two values of one key, such as a channel, without a word."""
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
"""Key that may be a list, or a text with commas -> the key for all but its first."""


def listed(values: Mapping[str, object]) -> dict[str, object]:
    """The same values with lists of instance types and regions as their first and the others."""
    found = dict(values)
    for name, others in LISTS.items():
        value = found.get(name)
        if isinstance(value, str) and "," in value:
            value = [one.strip() for one in value.split(",") if one.strip()]
        if isinstance(value, (list, tuple)) and value:
            found[name], found[others] = value[0], list(value[1:])
    return found


def _checked(name: str, kind: str, value: object) -> object:
    """``value`` if it is of the field's kind; YAML's lists become tuples."""
    if kind == "Any" or (value is None and "None" in kind):
        return value
    wanted: Any
    if kind.startswith("tuple"):
        if isinstance(value, str):
            value = (value,)
        wanted, words = (list, tuple), "a list"
    elif kind.startswith("Mapping"):
        if name == "tags" and isinstance(value, (list, tuple)):  # the API's own form
            value = {str(tag.get("Key")): str(tag.get("Value")) for tag in value if isinstance(tag, Mapping)}
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
    of, words = (Mapping, "keys and values") if kind.startswith("tuple[Mapping") else ((str, os.PathLike), "texts")
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
