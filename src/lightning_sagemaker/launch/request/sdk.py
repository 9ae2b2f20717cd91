# SPDX-License-Identifier: Apache-2.0
"""The SageMaker SDK 3 side: distributed configurations with this package's driver, and a ``ModelTrainer`` for a job.

Importing this module imports the SDK.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sagemaker.core.common_utils import check_and_get_run_experiment_config
from sagemaker.core.helper.iam_role_resolver import RoleValidationError as RoleValidationError
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.shapes import (
    InstanceGroup,
    InstancePlacementConfig,
    MetricDefinition,
    RetryStrategy,
    TrainingImageConfig,
)
from sagemaker.core.training.configs import (
    CheckpointConfig,
    Compute,
    InputData,
    Networking,
    OutputDataConfig,
    SourceCode,
    StoppingCondition,
    TensorBoardOutputConfig,
)
from sagemaker.train import ModelTrainer
from sagemaker.train.distributed import DistributedConfig

from lightning_sagemaker.launch.aws import boto_session_of
from lightning_sagemaker.launch.aws import make_session as make_boto_session
from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.request.create import (
    DRIVER,
    START_COMMAND,
    code_place,
    compression,
    driver_config,
    extras,
    image_config,
    input_data_config,
    tags_of,
    tensorboard_folder,
)
from lightning_sagemaker.launch.request.debugger import debugger_parts
from lightning_sagemaker.launch.spec.carried import carried_values, channel_names
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.distribution import DistributionRequest
from lightning_sagemaker.launch.spec.inputs import TrainingInput
from lightning_sagemaker.launch.transfer import split_uri

DRIVERS = Path(__file__).parents[2] / "container"


class LightningDistributed(DistributedConfig):  # type: ignore[misc]  # the SDK has no types
    """Any distribution, started by this package's driver in place of the SDK's.

    Attributes:
        request: The distribution.

    """

    request: DistributionRequest = DistributionRequest()
    config: dict[str, object] | None = None
    """Content of ``distributed.json``; None for that of ``request``."""

    @property
    def driver_dir(self) -> str:
        """Folder of the drivers, which the SDK uploads."""
        return str(DRIVERS)

    @property
    def driver_script(self) -> str:
        """Name of the file in ``driver_dir`` that the container runs."""
        return DRIVER

    def to_distribution(self) -> DistributionRequest:
        """The distribution, independent of the SDK."""
        return self.request

    def model_dump(self, **kwargs: object) -> dict[str, object]:
        """Content of ``distributed.json``, which the SDK writes."""
        return self.to_distribution().to_json() if self.config is None else self.config


class SMDDP(LightningDistributed):
    """AWS's SMDDP, for ``ModelTrainer(distributed=SMDDP())``: SDK 3 has no configuration for it.

    mpirun and ``smddprun`` start the program if the image has AWS's library and training toolkit, else torchrun does.

    Attributes:
        process_count_per_node: Number of ranks on each host; one per GPU when None.
        custom_mpi_options: Further options of mpirun, as one string.

    """

    process_count_per_node: int | None = None
    custom_mpi_options: str = ""

    def to_distribution(self) -> DistributionRequest:
        """The distribution, independent of the SDK."""
        return DistributionRequest("smddp", self.process_count_per_node, self.custom_mpi_options)


class ModelParallel(LightningDistributed):
    """Model parallelism by ``mp_parameters``, of version 1 or 2 of AWS's library.

    Attributes:
        parameters: Such as ``{"partitions": 2, "microbatches": 4, "ddp": True}`` or ``{"tensor_parallel_degree": 8}``.
        process_count_per_node: Number of ranks on each host; one per GPU when None.
        custom_mpi_options: Further options of mpirun, as one string.
        mpi: Whether mpirun, which version 1 of AWS's library needs, may start the program if the image has the library.

    """

    parameters: dict[str, object]
    process_count_per_node: int | None = None
    custom_mpi_options: str = ""
    mpi: bool = False

    def to_distribution(self) -> DistributionRequest:
        """The distribution, independent of the SDK."""
        return DistributionRequest(
            "smp", self.process_count_per_node, self.custom_mpi_options, self.parameters, uses_torchrun=not self.mpi
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log only errors of the SDK, which logs each default and warns about ``command`` with ``entry_script``."""
    logger = logging.getLogger("sagemaker")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def make_session(given: object, region: str) -> Session:
    """The SDK's session: the user's own, or one for ``region``.

    Args:
        given: A session of the SDK or of boto3; created when None.
        region: AWS region of the job.

    """
    if isinstance(given, Session):
        return given
    return Session(boto_session=make_boto_session(region) if given is None else boto_session_of(given))


def make_request(plan: JobPlan, archive: Path, session: Session, job_name: str | None = None) -> dict[str, object]:
    """Upload source and local inputs; return the CreateTrainingJob request that the SDK builds from ``plan``.

    Args:
        plan: The job.
        archive: Local path of the source archive.
        session: Session of the SDK.
        job_name: Name of the job; generated by the SDK when None.

    """
    run = check_and_get_run_experiment_config(plan.config.experiment_config)  # of `with Run(...)`, as in SDK 2
    plan = plan.changed(experiment_config=run)
    trainer = make_trainer(plan, str(archive), session)
    if plan.config.code_location is not None:  # the SDK knows one place for all uploads
        place = code_place(plan, job_name or plan.base_name)
        bucket, key = split_uri(str(place))
        own_key = plan.config.output_kms_key if bucket == split_uri(str(plan.config.output_path))[0] else None
        encrypted = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": own_key} if own_key else None  # as in SDK 2
        session.upload_data(path=str(archive), bucket=bucket, key_prefix=key.rpartition("/")[0], extra_args=encrypted)
        trainer.source_code.source_dir = place
    # The SDK's pipelines use this: the request that `train` would send; it has no arguments for what is added.
    request: dict[str, Any] = trainer._create_training_job_args(_uploaded(plan), boto3=True)
    if job_name is not None:
        request["TrainingJobName"] = job_name
    if plan.config.enable_sagemaker_metrics is not None:
        request["AlgorithmSpecification"]["EnableSageMakerMetricsTimeSeries"] = plan.config.enable_sagemaker_metrics
    places = {one["ChannelName"]: one["DataSource"]["S3DataSource"]["S3Uri"] for one in request["InputDataConfig"]}
    parts = {**extras(plan.config), **debugger_parts(plan, request["TrainingJobName"])}
    if plan.config.tags:  # of which the SDK leaves out empty values, without which AWS refuses a tag
        parts["Tags"] = tags_of(plan.config)
    return {**request, "InputDataConfig": input_data_config(plan, places), **parts}


def make_trainer(plan: JobPlan, archive: str, session: Session) -> ModelTrainer:
    """A ``ModelTrainer`` for a planned job.

    Args:
        plan: The job.
        archive: Local path or S3 URI of the source archive.
        session: Session of the SDK.

    """
    config = plan.config
    trainer = ModelTrainer(
        sagemaker_session=session,
        role=config.role,
        base_job_name=plan.base_name,
        training_image=plan.image.uri,
        training_image_config=shape(TrainingImageConfig, image_config(config)),
        training_input_mode=config.input_mode,
        source_code=SourceCode(source_dir=archive, entry_script=plan.bundle.entry_script, command=START_COMMAND),
        distributed=LightningDistributed(request=config.distributed, config=driver_config(plan)),
        compute=Compute(
            **_hosts(config),
            volume_size_in_gb=config.volume_size,
            keep_alive_period_in_seconds=config.keep_alive_period_in_seconds,
            volume_kms_key_id=config.volume_kms_key,
            training_plan_arn=config.training_plan,
            instance_placement_config=shape(InstancePlacementConfig, config.instance_placement_config),
            enable_managed_spot_training=config.use_spot_instances or None,
        ),
        networking=_networking(plan),
        stopping_condition=StoppingCondition(
            max_runtime_in_seconds=config.max_run, max_wait_time_in_seconds=plan.max_wait
        ),
        output_data_config=OutputDataConfig(
            s3_output_path=config.output_path, kms_key_id=config.output_kms_key, compression_type=compression(config)
        ),
        environment=plan.environment,
        hyperparameters=carried_values(plan.hyperparameters),
    )
    if plan.metric_definitions:
        trainer.with_metric_definitions(
            [MetricDefinition(name=one["Name"], regex=one["Regex"]) for one in plan.metric_definitions]
        )
    if plan.checkpoint_uri is not None:
        trainer.with_checkpoint_config(
            CheckpointConfig(s3_uri=plan.checkpoint_uri, local_path=config.checkpoint_local_path)
        )
    if config.tensorboard_output_path is not None:
        trainer.with_tensorboard_output_config(
            TensorBoardOutputConfig(
                s3_output_path=config.tensorboard_output_path, local_path=tensorboard_folder(config)
            )
        )
    if config.max_retry_attempts is not None:
        trainer.with_retry_strategy(RetryStrategy(maximum_retry_attempts=config.max_retry_attempts))
    return trainer


def _hosts(config: JobConfig) -> dict[str, object]:
    if not config.groups:
        return {"instance_type": config.instance_type, "instance_count": config.instance_count}
    return {"instance_groups": [InstanceGroup(**asdict(one)) for one in config.groups]}


def shape(kind: Any, value: Mapping[str, object] | None) -> object:
    """An object of the SDK's class ``kind`` from the API's dictionary; None from None."""
    if value is None:
        return None
    return kind.model_validate(_snake({name: item for name, item in value.items() if item is not None}))


def _snake(value: object) -> object:
    if isinstance(value, Mapping):
        return {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): _snake(item) for name, item in value.items()}
    return [_snake(item) for item in value] if isinstance(value, list) else value


def _uploaded(plan: JobPlan) -> list[InputData]:
    """Local folders, as objects of the SDK, which uploads them."""
    names = channel_names(plan.channels)
    return [
        InputData(channel_name=names[name], data_source=source.s3_data)
        for name, source in plan.channels.items()
        if isinstance(source, TrainingInput) and source.is_local
    ]


def _networking(plan: JobPlan) -> Networking | None:
    config = plan.config
    switches = (config.enable_network_isolation, config.encrypt_inter_container_traffic)
    if not config.subnets and switches == (None, None):
        return None
    return Networking(
        subnets=list(config.subnets) or None,
        security_group_ids=list(config.security_group_ids) or None,
        enable_network_isolation=config.enable_network_isolation,
        enable_inter_container_traffic_encryption=config.encrypt_inter_container_traffic,
    )
