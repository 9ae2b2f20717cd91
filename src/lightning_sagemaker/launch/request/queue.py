# SPDX-License-Identifier: Apache-2.0
"""Job queues of AWS Batch for training jobs: a queue starts a job when there is capacity, and may restart it.

The calls are those of the SDK's ``sagemaker.train.aws_batch``, whose ``TrainingQueue`` accepts a ``ModelTrainer`` only
and creates its own client.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from lightning_sagemaker.aws_types import Session
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import translate_aws_errors

_KIND = "SAGEMAKER_TRAINING"

_RETRY = {
    "attempts": 1,
    "evaluateOnExit": [
        {
            "action": "RETRY",
            "onStatusReason": "Received status from SageMaker:InternalServerError: We encountered an internal error."
            " Please try again.",
        },
        {"action": "EXIT", "onStatusReason": "*"},
    ],
}
"""Retry strategy: the SDK's default."""


def submit(session: Session, request: Mapping[str, Any], queue: str, share: str | None, seconds: int) -> str:
    """Put a training job into a queue.

    Args:
        session: A boto3 session.
        request: A CreateTrainingJob request.
        queue: Name or ARN of a queue for training jobs.
        share: Share identifier, where the queue's scheduling policy has shares; else None.
        seconds: Time limit of an attempt in seconds; at least 60 are requested.

    Returns:
        The Batch job ID.

    """
    tags = {one["Key"]: one["Value"] for one in request.get("Tags", [])}
    payload = {name: value for name, value in request.items() if name != "Tags"}
    optional = {"shareIdentifier": share, "tags": tags}
    with translate_aws_errors(f"Submitting the job to the queue {queue!r}"):
        done = session.client("batch").submit_service_job(
            jobName=request["TrainingJobName"],
            jobQueue=queue,
            serviceJobType=_KIND,
            serviceRequestPayload=json.dumps(payload),
            retryStrategy=_RETRY,
            timeoutConfig={"attemptDurationSeconds": max(60, seconds)},
            **{name: value for name, value in optional.items() if value},
        )
    return str(done["jobId"])


def wait_for_job(session: Session, identifier: str, poll: float, say: Callable[[str], None]) -> str:
    """Wait until the queue has started a training job; return its name.

    Args:
        session: A boto3 session.
        identifier: The Batch job ID that :func:`submit` returned.
        poll: Polling interval in seconds.
        say: Called with a message for each new state.

    Raises:
        LaunchError: If the queue ends the job without having started it.

    """
    client, before = session.client("batch"), ""
    while True:
        with translate_aws_errors(f"Describing the queued job {identifier}"):
            found = client.describe_service_job(jobId=identifier)
        if found["status"] != before:
            before = found["status"]
            say(f"queue: {before}")
        arn = found.get("latestAttempt", {}).get("serviceResourceId", {}).get("value")
        if arn:
            return str(arn).rpartition("/")[2]
        if before in ("FAILED", "SUCCEEDED"):
            raise LaunchError(
                f"The queue did not start the job: {found.get('statusReason', before)}. HINT: see the AWS Batch console."
            )
        time.sleep(poll)
