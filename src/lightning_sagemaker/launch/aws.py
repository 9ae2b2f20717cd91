# SPDX-License-Identifier: Apache-2.0
"""Sessions and clients of boto3, and the translation of its errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import cast

from lightning_sagemaker.aws_types import Client, Session
from lightning_sagemaker.errors import LaunchError

_INSTALL = "pip install 'lightning-sagemaker[launch]'"

_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_INVALID = ("InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidAccessKeyId")


_CAPACITY = ("ResourceLimitExceeded", "CapacityError", "InsufficientCapacity", "InsufficientInstanceCapacity")
_NO_CAPACITY = re.compile(
    r"(CapacityError|Insufficient\w*Capacity\w*|ResourceLimitExceeded)\b|Unable to provision requested ML"
)


class CapacityError(LaunchError):
    """AWS has too few instances, or the account's quota is too low; another type or region may work."""


def lacks_capacity(reason: str | None) -> bool:
    """Whether a job's FailureReason reports a lack of capacity."""
    return bool(_NO_CAPACITY.match(reason or ""))


def make_session(region: str | None = None) -> Session:
    """A boto3 session.

    Raises:
        LaunchError: If boto3 is not installed or no region is configured.

    """
    try:
        import boto3
    except ImportError:
        raise LaunchError(f"boto3 is not installed. HINT: {_INSTALL}.") from None
    with translate_aws_errors("AWS"):
        session: Session = boto3.Session(region_name=region)
    if session.region_name is None:
        raise LaunchError("No AWS region is configured. HINT: give region, or set AWS_DEFAULT_REGION.")
    return session


_OTHER_USES = {
    "PipelineSession": "A job would start now, not when the pipeline runs. HINT: pipelines are SDK 3's; give their step"
    " ModelTrainer with distributed=SMDDP().",
    "LocalSession": "Containers are not run on this machine. HINT: leave the session out, and rehearse the job here:"
    " `lightning-sagemaker launch ... --rehearse`.",
}
"""Class of the SDK's sessions whose jobs are not to start in the account -> why it is refused."""


def boto_session_of(given: object) -> Session:
    """The boto3 session of what a user gives as ``sagemaker_session``: a session of the SDK, or of boto3.

    Raises:
        LaunchError: If it is neither, or one of the SDK's that does not start jobs in the account.

    """
    kinds = {one.__name__ for one in type(given).__mro__}
    for kind, why in _OTHER_USES.items():
        if kind in kinds:
            raise LaunchError(f"sagemaker_session is a {type(given).__name__}. {why}")
    found = cast("Session", getattr(given, "boto_session", None) or given)
    if not isinstance(getattr(found, "region_name", None), str) or not callable(getattr(found, "client", None)):
        raise LaunchError(
            f"sagemaker_session={given!r} was set. HINT: give a Session of the SageMaker SDK, or of boto3 with a region."
        )
    return found


def in_other_region(given: object, region: str) -> Session:
    """A boto3 session with the credentials of the user's session, for another region.

    Args:
        given: A session of the SDK or of boto3; None for the configured credentials.
        region: The other region.

    """
    if given is None:
        return make_session(region)
    import boto3

    own = boto_session_of(given)
    profile, found = getattr(own, "profile_name", "default"), own.get_credentials()
    if found is None or profile != "default":
        session: Session = boto3.Session(region_name=region, profile_name=None if profile == "default" else profile)
        return session
    usual, keys = boto3.Session().get_credentials(), found.get_frozen_credentials()
    if usual is not None and usual.access_key == keys.access_key:
        return make_session(region)  # which renews them
    copied: Session = boto3.Session(keys.access_key, keys.secret_key, keys.token, region_name=region)
    return copied


def make_client(service: str, region: str | None = None) -> Client:
    """A boto3 client of ``service``.

    Raises:
        LaunchError: If boto3 is not installed or no region is configured.

    """
    return make_session(region).client(service)


@contextlib.contextmanager
def translate_aws_errors(what: str) -> Iterator[None]:
    """Turn errors of boto3 and botocore into a :class:`LaunchError` that says what to do.

    Args:
        what: The operation, with which the message begins, such as ``Creating the job``.

    Raises:
        CapacityError: If AWS reports a lack of capacity or a quota that is too low.
        LaunchError: At any other error of AWS, or without credentials.

    """
    try:
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConfigNotFound,
            ConfigParseError,
            NoCredentialsError,
            ParamValidationError,
            PartialCredentialsError,
            ProfileNotFound,
        )
    except ImportError:
        yield
        return
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise LaunchError(
            f"There are no AWS credentials ({error}). HINT: run `aws configure` or `aws sso login`; a launch's --dry-run"
            " needs none."
        ) from error
    except ClientError as error:
        found = error.response.get("Error", {})
        kind = CapacityError if str(found.get("Code", "")).removesuffix("Exception") in _CAPACITY else LaunchError
        raise kind(_sentence(what, found)) from error
    except (ProfileNotFound, ConfigNotFound, ConfigParseError) as error:
        raise LaunchError(
            f"{what} failed: {error}. HINT: `aws configure list-profiles` lists the profiles; check AWS_PROFILE and"
            " AWS_CONFIG_FILE."
        ) from error
    except ParamValidationError as error:
        raise LaunchError(f"{what} failed: {' '.join(str(error).split())}. HINT: correct the value.") from error
    except BotoCoreError as error:
        raise LaunchError(f"{what} failed: {error}. HINT: check the region and the network.") from error


def _sentence(what: str, error: dict[str, str]) -> str:
    code, message = error.get("Code", ""), error.get("Message", "")
    if code in _EXPIRED:
        return "The AWS credentials have expired. HINT: run `aws sso login`, or get new ones."
    if code in _INVALID:
        return f"AWS rejects these credentials ({code}). HINT: check the profile and the account."
    if code in _DENIED:
        return f"{what} is not allowed: {message} HINT: add the action to the caller's IAM policy."
    hint = "see the message"
    if code == "ResourceLimitExceeded":
        hint = "request a higher quota for this instance type, or use fewer or other instances"
    return f"{what} failed: {code}: {message} HINT: {hint}."
