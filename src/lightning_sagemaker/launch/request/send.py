# SPDX-License-Identifier: Apache-2.0
"""From a plan to a job that AWS has: checks that ask AWS, the upload, and the call that starts the job or queues it."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lightning_sagemaker.aws_types import Session
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import translate_aws_errors
from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.planning.quotas import check_quota
from lightning_sagemaker.launch.planning.report import exposed, not_sent
from lightning_sagemaker.launch.request.queue import submit
from lightning_sagemaker.launch.request.upload import shown_upload
from lightning_sagemaker.launch.spec.config import JobConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sent:
    """A job that was sent.

    Attributes:
        job_name: Its name.
        session: The boto3 session that was used.
        queued: A queue's identifier of the job; None where none was asked for.

    """

    job_name: str
    session: Session
    queued: str | None


def send(plan: JobPlan, given: object = None, job_name: str | None = None) -> Sent:
    """Upload and start what ``plan`` says.

    Args:
        plan: The job.
        given: A session of the SDK or of boto3; None for a new one.
        job_name: In place of the name that the SDK makes.

    Raises:
        LaunchError: If something is not installed, or AWS or its SDK refuses.

    """
    try:
        from lightning_sagemaker.launch.request import sdk
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
    for line in exposed(plan):
        _log.warning("%s", line)
    with translate_aws_errors("Creating the job"), tempfile.TemporaryDirectory() as folder:
        session = sdk.make_session(given, plan.region)
        check_quota(session.boto_session, plan.config)
        role = _role_arn(session.boto_session, plan.config)
        plan = plan.with_bucket(session.default_bucket()).changed(role=role)
        try:
            with sdk.quiet(), shown_upload(session, plan.bytes_to_send):
                archive, staged = plan.bundle.write(Path(folder)), plan.staged(Path(folder, "inputs"))
                request = sdk.make_request(staged, archive, session, job_name)
        except (sdk.RoleValidationError, ValueError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise LaunchError(f"The SageMaker SDK rejects the job: {' '.join(lines[:4])} HINT: fix that.") from error
        queued = None
        if plan.config.job_queue is None:
            session.boto_session.client("sagemaker").create_training_job(**request)
        else:
            share, seconds = plan.config.share_identifier, plan.max_wait or plan.config.max_run
            queued = submit(session.boto_session, request, plan.config.job_queue, share, seconds)
    return Sent(str(request["TrainingJobName"]), session.boto_session, queued)


def _role_arn(session: Session, config: JobConfig) -> str:
    """The role's ARN; IAM knows it by the name."""
    role = str(config.role)
    return role if "/" in role else str(session.client("iam").get_role(RoleName=role)["Role"]["Arn"])
