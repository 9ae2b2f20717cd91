# SPDX-License-Identifier: Apache-2.0
"""A session of the SageMaker SDK without AWS: uploads are copied to a folder. Importing this module imports the SDK."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from botocore.exceptions import NoCredentialsError
from sagemaker.core.helper.session_helper import Session

from lightning_sagemaker.launch.planning.job_plan import JobPlan
from lightning_sagemaker.launch.request.create import ACCOUNT, default_bucket, role_arn
from lightning_sagemaker.launch.request.sdk import make_request, quiet
from lightning_sagemaker.launch.spec.inputs import FileSystemInput

_CHECKS_ROLE = "SAGEMAKER_VALIDATE_ROLE"
"""Environment variable; unless it is ``false``, the SDK checks the role with IAM."""

_STAND_IN = f"arn:aws:iam::{ACCOUNT}:role/rehearsal"


def sent_request(plan: JobPlan, store: Path) -> dict[str, object]:
    """The request that the SDK would send, with everything that it would upload copied to ``store``.

    Args:
        plan: The job. Its inputs are not copied: see ``folders`` of
            :func:`~lightning_sagemaker.simulator.request_runner.run_request`.
        store: Folder for the objects, as ``store/BUCKET/KEY``.

    """
    session = OfflineSession(plan.region, store)
    plan = plan.with_bucket(session.default_bucket())
    plan = replace(plan, config=plan.config.changed(role=role_arn(plan.config.role) or _STAND_IN))
    before = os.environ.get(_CHECKS_ROLE)
    os.environ[_CHECKS_ROLE] = "false"
    try:
        with tempfile.TemporaryDirectory() as folder, quiet():
            request = make_request(_remote(plan), plan.bundle.write(Path(folder)), session)
    finally:
        if before is None:
            del os.environ[_CHECKS_ROLE]
        else:
            os.environ[_CHECKS_ROLE] = before
    return request


class OfflineSession(Session):  # type: ignore[misc]  # the SDK has no types
    """Copies uploads to a folder; every call of AWS fails for lack of credentials.

    Args:
        region: AWS region of the job.
        store: Folder for the objects, as ``store/BUCKET/KEY``.

    """

    def __init__(self, region: str, store: Path) -> None:
        self._store = store
        self._default_bucket_name_override = None
        self.default_bucket_prefix = None
        self.sagemaker_config: dict[str, object] = {}
        self.settings = None
        self.local_mode = False
        self._config = None
        self._region_name = region
        self.boto_session = _NoAWS(region)

    def default_bucket(self) -> str:
        """The name that the SDK would use, with the placeholder account."""
        return default_bucket(self._region_name)

    def upload_data(self, path: str, bucket: str, key_prefix: str, **_: object) -> str:
        """Copy a file or folder to ``store/BUCKET/KEY``; return the S3 URI, as the SDK does."""
        source, base = Path(path), self._store / bucket / key_prefix
        if source.is_dir():
            shutil.copytree(source, base, dirs_exist_ok=True)
            return f"s3://{bucket}/{key_prefix}"
        base.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, base)
        return f"s3://{bucket}/{key_prefix}/{source.name}"


class _NoAWS:
    """A boto3 session that only knows its region."""

    def __init__(self, region: str) -> None:
        self.region_name = region

    def client(self, name: str, **_: object) -> object:
        return _NoService()

    resource = client


class _NoService:
    """A client whose every call raises NoCredentialsError, which the SDK handles."""

    def __getattr__(self, action: str) -> object:
        def refuse(*_: object, **__: object) -> None:
            raise NoCredentialsError

        return refuse


def _remote(plan: JobPlan) -> JobPlan:
    """The plan with S3 URIs for local inputs, as if they were uploaded; the hosts get local folders."""
    channels = {
        name: source
        if isinstance(source, FileSystemInput) or not source.is_local
        else replace(source, s3_data=f"s3://{default_bucket(plan.region)}/{plan.base_name}/{name}", input_mode="File")
        for name, source in plan.channels.items()
    }
    return replace(plan, channels=channels)
