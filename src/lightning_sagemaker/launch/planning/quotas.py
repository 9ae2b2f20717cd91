# SPDX-License-Identifier: Apache-2.0
"""Check of the account's instance quota, where the caller may read it."""

from __future__ import annotations

import logging

from lightning_sagemaker.aws_types import Session
from lightning_sagemaker.launch.aws import CapacityError
from lightning_sagemaker.launch.spec.config import JobConfig

_log = logging.getLogger(__name__)


def check_quota(session: Session, config: JobConfig) -> None:
    """Compare the number of hosts with the account's quota for training.

    Args:
        session: A boto3 session.
        config: The job.

    Raises:
        CapacityError: If the quota is lower than the job needs. Nothing is raised if it cannot be read.

    """
    from botocore.exceptions import BotoCoreError, ClientError

    kind = "spot training job usage" if config.use_spot_instances else "training job usage"
    wanted = {f"{config.instance_type} for {kind}": config.instance_count}
    for group in config.groups[1:]:
        name = f"{group.instance_type} for {kind}"
        wanted[name] = wanted.get(name, 0) + group.instance_count
    try:
        pages = session.client("service-quotas").get_paginator("list_service_quotas")
        quotas = [quota for page in pages.paginate(ServiceCode="sagemaker") for quota in page["Quotas"]]
    except (BotoCoreError, ClientError) as error:
        _log.info("The quota of %s is unknown (%s).", ", ".join(wanted), type(error).__name__)
        return
    for quota in quotas:
        name = quota["QuotaName"]
        if quota["Value"] < wanted.get(name, 0):
            raise CapacityError(
                f"The account's quota for {name} is {quota['Value']:.0f}, the job needs {wanted[name]}. HINT: request"
                f" an increase in the Service Quotas console ({quota['QuotaCode']}), or use fewer."
            )
