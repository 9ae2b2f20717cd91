# SPDX-License-Identifier: Apache-2.0
"""The estimator: the vocabulary of SDK 2's ``HuggingFace`` and ``PyTorch``, which SDK 3 removed, on top of SDK 3."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.attempts import run_attempts
from lightning_sagemaker.launch.aws import boto_session_of, in_other_region, make_session
from lightning_sagemaker.launch.planning import rules
from lightning_sagemaker.launch.planning.alternatives import alternative_plans
from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.planning.plan import make_plan
from lightning_sagemaker.launch.request.create import create_request, default_bucket
from lightning_sagemaker.launch.request.queue import wait_for_job
from lightning_sagemaker.launch.request.send import send
from lightning_sagemaker.launch.settings import Settings
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.described import described_job
from lightning_sagemaker.launch.spec.vocabulary import by_position, job_values
from lightning_sagemaker.launch.tracking.endpoint import create_endpoint
from lightning_sagemaker.launch.tracking.jobs import JobStatus, TrainingJobs, wants_logs
from lightning_sagemaker.launch.transfer import sent_config

_log = logging.getLogger(__name__)


class Estimator(Settings):
    """A training job, described by the arguments of SDK 2's estimators and run by SDK 3.

    Args:
        *given: Positional arguments: ``entry_point``; in a subclass, those of SDK 2's class of the same name.
        **arguments: Fields of :class:`~lightning_sagemaker.launch.spec.config.JobConfig`; also ``sagemaker_session`` (of
            the SDK, or a boto3 session) and SDK 2's other names (:mod:`~lightning_sagemaker.launch.spec.vocabulary`).

    Raises:
        LaunchError: If an argument is unknown or of the wrong type.

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

    _kind = "Estimator"

    def __init__(self, *given: object, **arguments: object) -> None:
        named = by_position(self._kind, given, arguments)
        session = named.pop("sagemaker_session", None)
        self.config = JobConfig.from_mapping(job_values(named))
        self.sagemaker_session = session
        self.job_name: str | None = None
        self._queued: str | None = None
        self._home: str | None = None
        self._jobs: TrainingJobs | None = None

    @classmethod
    def from_config(cls, config: JobConfig, sagemaker_session: object = None) -> Estimator:
        """An estimator for an existing job description."""
        estimator = cls.__new__(cls)
        Estimator.__init__(estimator)
        estimator.config = config
        estimator.sagemaker_session = sagemaker_session
        return estimator

    @classmethod
    def attach(
        cls,
        training_job_name: str,
        sagemaker_session: object = None,
        model_channel_name: str = "model",
        region: str | None = None,
    ) -> Estimator:
        """An estimator for a job that was started earlier, by this package or SDK 2.

        Args:
            training_job_name: Name of the job.
            sagemaker_session: Session of the SDK or of boto3; created when None.
            model_channel_name: Name of the channel with the job's initial weights.
            region: AWS region of the job, for the session that is created; None for the configured region.

        Raises:
            LaunchError: If there is no such job.

        """
        estimator = cls.from_config(JobConfig(region=region), sagemaker_session)
        job = estimator.jobs.describe(training_job_name).description
        config = sent_config(estimator.jobs.session.client("s3"), job)
        estimator.config = described_job(job, model_channel_name, config).changed(region=estimator.config.region)
        estimator.job_name = training_job_name
        return estimator

    def plan(self, inputs: object = None) -> JobPlan:
        """Resolve the job; nothing is uploaded or started.

        Args:
            inputs: As in :meth:`fit`.

        """
        config = self.config if inputs is None else self.config.changed(inputs=inputs)
        own = None if self._session is None else boto_session_of(self._session)
        return make_plan(config, defaults=getattr(self._session, "sagemaker_config", None), session=own)

    def request(
        self, inputs: object = None, plan: JobPlan | None = None, job_name: str | None = None
    ) -> dict[str, object]:
        """The complete CreateTrainingJob request, without the SDK; only an ``s3://`` source needs credentials.

        Args:
            inputs: As in :meth:`fit`.
            plan: A plan of this job, made before; ``inputs`` is then ignored.
            job_name: Overrides the name from ``base_job_name`` and the time.

        """
        plan = self.plan(inputs) if plan is None else plan
        name = job_name or f"{plan.base_name}-{time.strftime('%Y%m%d%H%M%S')}"
        return create_request(plan, name, default_bucket(plan.region))

    def fit(
        self,
        inputs: object = None,
        wait: bool = True,
        logs: bool | str | Sequence[str] | None = True,
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
        poll: float = 10.0,
        plan: JobPlan | None = None,
    ) -> None:
        """Check, upload and start the job.

        Args:
            inputs: See :func:`~lightning_sagemaker.launch.spec.inputs.parse_inputs`; the configuration's when None.
            wait: Whether to wait until the job has ended.
            logs: Whether to show the hosts' output; SDK 2's ``"All"``, ``"Rules"`` and ``"None"`` are accepted too.
            job_name: Overrides the name from ``base_job_name`` and the time.
            experiment_config: Names for SageMaker Experiments, such as ``{"ExperimentName": "albert"}``.
            poll: Polling interval in seconds.
            plan: A plan of this job, made before; ``inputs`` is then ignored.

        Raises:
            LaunchError: If the job is invalid, AWS rejects it, or it fails while this method waits.

        """
        rules.check_job_name(job_name)
        if plan is None:
            plan = self.plan(inputs)
        if experiment_config is not None:
            plan = plan.changed(experiment_config=experiment_config)
        status = self.start(plan, lambda *_: self._follow(wants_logs(logs), poll) if wait else None, job_name)
        if status is not None:
            status.checked()

    def start(
        self,
        plan: JobPlan,
        follow: Callable[[str, JobPlan], JobStatus | None],
        job_name: str | None = None,
        say: Callable[[str], None] = _log.warning,
    ) -> JobStatus | None:
        """Send a plan and, where there is no capacity, the job's other instance types and regions in turn.

        Args:
            plan: The job.
            follow: Called with a job's name and its plan, returns its status; None without waiting, when only an
                immediate rejection by AWS triggers the next attempt.
            job_name: Overrides the generated name; later attempts get a numeric suffix.
            say: Called with a message for each abandoned attempt.

        """
        rules.check_role(plan.config)
        self._home = plan.region

        def send_one(one: JobPlan, number: int) -> str:
            name = job_name
            if number:  # names made in the same second would be equal
                name = f"{job_name or one.base_name + time.strftime('-%m%d%H%M%S')}-{number + 1}"
            self._jobs = None
            self.job_name = self._send(one, name)
            return self.job_name

        return run_attempts(alternative_plans(plan), send_one, follow, say)

    def _follow(self, logs: bool, poll: float, per_hour: float | None = None) -> JobStatus:
        return self.jobs.follow(self.started_name(poll), logs=logs, poll=poll, per_hour=per_hour)

    def started_name(self, poll: float = 10.0, say: Callable[[str], None] = _log.info) -> str:
        """The job's name; waits until a queued job is started, since the queue chooses its name.

        Args:
            poll: Polling interval of the queue in seconds.
            say: Called with a message for each state in the queue.

        """
        if self._queued is not None:
            self.job_name = wait_for_job(self.jobs.session, self._queued, poll, say)
            self._queued = None
        return self._name()

    def _send(self, plan: JobPlan, job_name: str | None) -> str:
        """Upload a planned job, and start or queue it; return the job's name."""
        given = self._session if plan.region == self._home else in_other_region(self._session, plan.region)
        sent = send(plan, given, job_name)
        self._jobs, self._queued = TrainingJobs(session=sent.session, sagemaker=sent.sagemaker), sent.queued
        return sent.job_name

    def wait(
        self, logs: bool | str | Sequence[str] | None = True, poll: float = 10.0, per_hour: float | None = None
    ) -> JobStatus:
        """Follow the job until it has ended; return its final status.

        Raises:
            LaunchError: If the job fails, with SageMaker's reason.

        """
        return self._follow(wants_logs(logs), poll, per_hour).checked()

    def logs(self) -> None:
        """Show the log from its beginning to the job's end."""
        self.jobs.follow(self._name())

    def stop(self) -> None:
        """Ask the job to stop: it gets SIGTERM, and has 120 seconds to write a checkpoint."""
        self.jobs.stop(self._name())

    @property
    def _current_job_name(self) -> str | None:  # SDK 2's, private, but notebooks read it
        return self.job_name

    @property
    def latest_training_job(self) -> JobStatus | None:
        """Current status of the job; None before one is started."""
        return None if self.job_name is None else self.jobs.describe(self.job_name)

    @property
    def model_data(self) -> str | None:
        """``s3://`` URI of the model artifact; None before a job is started."""
        return None if self.job_name is None else self.jobs.describe(self.job_name).model_data

    def latest_job_tensorboard_artifacts_path(self) -> str | None:
        """``s3://`` prefix of TensorBoard's files; None without ``tensorboard_output_path``."""
        place = self.config.tensorboard_output_path
        return None if place is None else f"{place.rstrip('/')}/{self._name()}/tensorboard-output"

    def deploy(
        self,
        initial_instance_count: int,
        instance_type: str,
        image_uri: str | None = None,
        endpoint_name: str | None = None,
    ) -> str:
        """Deploy the model artifact to a new endpoint.

        Args:
            initial_instance_count: Number of hosts.
            instance_type: Instance type of each host.
            image_uri: Inference image. A recipe's artifact has ``code/inference.py`` for AWS's images.
            endpoint_name: Name of the endpoint; the job's name when None.

        Returns:
            The endpoint's name; it is usable some minutes later.

        Raises:
            LaunchError: If ``image_uri`` is None, the job has no model, or AWS rejects a request.

        """
        if image_uri is None:
            raise LaunchError(
                "deploy was given no image_uri, and the training image has no server. HINT: pass an inference image;"
                " sagemaker.core.image_uris.retrieve(..., image_scope='inference') returns them."
            )
        job = self.jobs.describe(self._name())
        name = endpoint_name or job.name
        create_endpoint(job, name, image_uri, instance_type, initial_instance_count)
        return name

    @property
    def jobs(self) -> TrainingJobs:
        """The account's training jobs in the region of the session."""
        if self._jobs is None:
            own = self._session
            session = make_session(self.config.region) if own is None else boto_session_of(own)
            self._jobs = TrainingJobs(session=session, sagemaker=getattr(own, "sagemaker_client", None))
        return self._jobs

    def _name(self) -> str:
        if self.job_name is None:
            raise LaunchError("No job was started yet. HINT: call fit, or Estimator.attach(NAME).")
        return self.job_name


class HuggingFace(Estimator):
    """SDK 2's ``sagemaker.huggingface.HuggingFace``; needs ``transformers_version`` or ``image_uri``."""

    _kind = "HuggingFace"

    def __init__(self, *given: object, **arguments: object) -> None:
        super().__init__(*given, **arguments)
        if self.config.transformers_version is None and self.config.image_uri is None:
            raise LaunchError("HuggingFace needs transformers_version, or image_uri. HINT: set transformers_version.")


class PyTorch(Estimator):
    """SDK 2's ``sagemaker.pytorch.PyTorch``."""

    _kind = "PyTorch"
