# SPDX-License-Identifier: Apache-2.0
"""The estimator: the vocabulary of SDK 2's ``HuggingFace`` and ``PyTorch``, which SDK 3 took away, on top of SDK 3."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lightning_sagemaker.launch import rules
from lightning_sagemaker.launch.aws import make_session, sentences
from lightning_sagemaker.launch.errors import LaunchError, suggestion
from lightning_sagemaker.launch.job_config import JobConfig
from lightning_sagemaker.launch.jobs import JobStatus, TrainingJobs
from lightning_sagemaker.launch.plan import make_plan, not_sent
from lightning_sagemaker.launch.quotas import check_quota
from lightning_sagemaker.launch.request import JobPlan, create_request, default_bucket

_log = logging.getLogger(__name__)

_ALIASES = {
    "framework_version": "pytorch_version",
    "keep_alive_period": "keep_alive_period_in_seconds",
    "train_instance_type": "instance_type",
    "train_instance_count": "instance_count",
    "train_volume_size": "volume_size",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
    "train_use_spot_instances": "use_spot_instances",
}
"""Other names, of SDK 2 and of SDK 1."""

_WITHOUT_EFFECT = (
    "debugger_hook_config", "disable_profiler", "profiler_config", "rules", "container_log_level", "code_location",
    "enable_sagemaker_metrics",
)  # fmt: skip
"""Arguments of SDK 2 that mean nothing here: no debugger and no profiler is ever attached."""

_NAMES = tuple(one.name for one in fields(JobConfig))


class Estimator:
    """A training job, described in the words of SDK 2's estimators and run by SDK 3.

    Args:
        **arguments: Those of :class:`~lightning_sagemaker.launch.job_config.JobConfig`; also ``sagemaker_session`` (of the
            SDK, or a boto3 session) and SDK 2's other names.

    Raises:
        LaunchError: If an argument is not known or of the wrong kind.

    Example::

        from lightning_sagemaker.launch import Estimator

        estimator = Estimator(
            recipe="albert-mlm",
            role=role,
            instance_type="ml.p4d.24xlarge",
            instance_count=2,
            distribution="smddp",
            use_spot_instances=True,
        )
        estimator.fit({"train": "s3://bucket/text/"})

    """

    def __init__(self, **arguments: Any) -> None:
        self._session = arguments.pop("sagemaker_session", None)
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            if name in _WITHOUT_EFFECT:
                _log.info("%s has no effect: no debugger and no profiler is attached to the job.", name)
            elif value is not None:
                values[_ALIASES.get(name, name)] = value
        for name in values:
            if name not in _NAMES:
                raise LaunchError(f"The estimator was given {name!r}. HINT: {suggestion(name, [*_NAMES, *_ALIASES])}")
        self.config = JobConfig.from_mapping(values)
        self.job_name: str | None = None
        self._jobs: TrainingJobs | None = None

    @classmethod
    def from_config(cls, config: JobConfig, sagemaker_session: Any = None) -> Estimator:
        """An estimator of a job that is described already."""
        estimator = cls(sagemaker_session=sagemaker_session)
        estimator.config = config
        return estimator

    @classmethod
    def attach(cls, training_job_name: str, sagemaker_session: Any = None, region: str | None = None) -> Estimator:
        """An estimator of a job that was started before.

        Raises:
            LaunchError: If there is no such job.

        """
        estimator = cls(sagemaker_session=sagemaker_session, region=region)
        job = estimator.jobs.describe(training_job_name).description
        resources = job["ResourceConfig"]
        estimator.config = estimator.config.changed(
            role=job["RoleArn"],
            instance_type=resources["InstanceType"],
            instance_count=resources["InstanceCount"],
            image_uri=job["AlgorithmSpecification"].get("TrainingImage"),
            hyperparameters=job.get("HyperParameters", {}),
            output_path=job["OutputDataConfig"]["S3OutputPath"],
        )
        estimator.job_name = training_job_name
        return estimator

    def plan(self, inputs: Any = None) -> JobPlan:
        """What will be sent; nothing leaves this machine.

        Args:
            inputs: As in :meth:`fit`.

        """
        return make_plan(self.config if inputs is None else self.config.changed(inputs=inputs))

    def request(self, inputs: Any = None, plan: JobPlan | None = None) -> dict[str, Any]:
        """The complete CreateTrainingJob request, with a stand-in for the account; needs neither credentials nor the SDK.

        Args:
            inputs: As in :meth:`fit`.
            plan: That was made of this job before.

        """
        plan = self.plan(inputs) if plan is None else plan
        name = f"{plan.base_name}-{time.strftime('%Y%m%d%H%M%S')}"
        return create_request(plan, name, default_bucket(plan.region))

    def fit(
        self,
        inputs: Any = None,
        wait: bool = True,
        logs: bool | str = True,
        poll: float = 10.0,
        plan: JobPlan | None = None,
    ) -> None:
        """Check, upload and start the job.

        Args:
            inputs: See :func:`~lightning_sagemaker.launch.inputs.parse_inputs`; the configuration's when None.
            wait: Whether to return only when the job has ended.
            logs: Whether to show what the hosts print.
            poll: Seconds between two looks.
            plan: That was made of this job before.

        Raises:
            LaunchError: If something in the job is wrong, AWS refuses, or the job that was waited for fails.

        """
        rules.check_role(self.config)
        plan = self.plan(inputs) if plan is None else plan
        try:
            from lightning_sagemaker.launch import sdk
        except ImportError as error:
            raise LaunchError(
                f"The SageMaker SDK 3 is not installed ({error}). HINT: pip install 'lightning-sagemaker[launch]'."
            ) from None
        if not plan.bundle.is_scanned:
            raise LaunchError(
                "The source was not scanned for secrets: detect-secrets is not installed. HINT: pip install"
                " 'lightning-sagemaker[launch]'."
            )
        _log.info("sent: %s", ", ".join(plan.bundle.files))
        for line in not_sent(plan):
            _log.warning("not sent: %s", line)
        with sentences("Creating the job"), tempfile.TemporaryDirectory() as folder:
            session = sdk.make_session(self._session, plan.region)
            check_quota(session.boto_session, plan.config)
            plan = plan.with_bucket(session.default_bucket())
            try:
                with sdk.quiet():
                    trainer = sdk.make_trainer(plan, plan.bundle.write(Path(folder)), session)
                    trainer.train(input_data_config=sdk.make_channels(plan), wait=False, logs=False)
            except (sdk.RoleValidationError, ValueError) as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                raise LaunchError(
                    f"The SageMaker SDK refuses the job: {' '.join(lines[:4])} HINT: change that."
                ) from error
            self.job_name = str(trainer._latest_training_job.training_job_name)
        self._jobs = TrainingJobs(session=session.boto_session)
        if wait:
            self.wait(bool(logs), poll)

    def wait(self, logs: bool = True, poll: float = 10.0, per_hour: float | None = None) -> JobStatus:
        """Show the job until it has ended.

        Raises:
            LaunchError: If it fails, with the reason that SageMaker has.

        """
        status = self.jobs.follow(self._name(), logs=logs, poll=poll, per_hour=per_hour)
        if status.status == "Failed":
            raise LaunchError(
                f"The job {status.name} failed: {status.reason}. HINT: `lightning-sagemaker logs {status.name}`."
            )
        return status

    def logs(self) -> None:
        """Show the log from its beginning to the job's end."""
        self.jobs.follow(self._name())

    def stop(self) -> None:
        """Ask the job to stop: it gets SIGTERM, and has 120 seconds to write a checkpoint."""
        self.jobs.stop(self._name())

    @property
    def latest_training_job(self) -> JobStatus:
        """How the job is doing."""
        return self.jobs.describe(self._name())

    @property
    def model_data(self) -> str | None:
        """``s3://`` address of the artefact."""
        return self.latest_training_job.model_data

    def deploy(
        self, initial_instance_count: int, instance_type: str, image_uri: str, endpoint_name: str | None = None
    ) -> str:
        """Hand the artefact to an endpoint.

        Args:
            initial_instance_count: Hosts.
            instance_type: Of each.
            image_uri: Of an inference image. The artefact of a recipe has ``code/inference.py`` for those of AWS.
            endpoint_name: The job's name when None.

        Returns:
            The endpoint's name; it is usable some minutes later.

        """
        name = endpoint_name or self._name()
        container = {"Image": image_uri, "ModelDataUrl": self.model_data}
        variant = {
            "VariantName": "AllTraffic",
            "ModelName": name,
            "InitialInstanceCount": initial_instance_count,
            "InstanceType": instance_type,
        }
        client = self.jobs.session.client("sagemaker")
        with sentences("Deploying the model"):
            client.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=self.config.role)
            client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
            client.create_endpoint(EndpointName=name, EndpointConfigName=name)
        return name

    @property
    def jobs(self) -> TrainingJobs:
        """The account's jobs."""
        if self._jobs is None:
            own = self._session
            session = make_session(self.config.region) if own is None else getattr(own, "boto_session", own)
            self._jobs = TrainingJobs(session=session)
        return self._jobs

    def _name(self) -> str:
        if self.job_name is None:
            raise LaunchError("No job was started yet. HINT: call fit, or Estimator.attach(NAME).")
        return self.job_name


class HuggingFace(Estimator):
    """SDK 2's ``sagemaker.huggingface.HuggingFace``."""

    def __init__(self, **arguments: Any) -> None:
        _refuse_tensorflow(arguments)
        if arguments.get("transformers_version") is None and arguments.get("image_uri") is None:
            raise LaunchError("HuggingFace needs transformers_version, or image_uri. HINT: set transformers_version.")
        super().__init__(**arguments)


class PyTorch(Estimator):
    """SDK 2's ``sagemaker.pytorch.PyTorch``."""


def _refuse_tensorflow(arguments: Mapping[str, Any]) -> None:
    if arguments.get("tensorflow_version") is not None:
        raise LaunchError("tensorflow_version was set. HINT: this package trains with PyTorch; set pytorch_version.")
