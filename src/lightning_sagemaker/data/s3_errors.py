# SPDX-License-Identifier: Apache-2.0
"""Errors of S3's API: those that a retry may fix, and messages for the others."""

from __future__ import annotations

from lightning_sagemaker.data.damage import DamagedDataError, DataReadError

_MISSING = {"NoSuchKey", "NoSuchBucket", "404", "NotFound"}
_TOO_SHORT = {"InvalidRange", "416"}
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken", "TokenRefreshRequired"}
_PASSING = {
    *EXPIRED,
    *("RequestTimeTooSkewed", "RequestTimeout", "RequestTimeoutException", "PriorRequestNotComplete"),
    *("SlowDown", "Throttling", "ThrottlingException", "RequestThrottled", "RequestLimitExceeded", "TooManyRequests"),
    *("BandwidthLimitExceeded", "OperationAborted", "NoSuchUpload"),
    *("BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"),  # broken in transit
}
"""Errors with a status of 4xx after which a request may succeed; those that botocore retries are among them."""
_PASSING_STATUS = (408, 409, 425, 429)


class MissingError(DamagedDataError):
    """There is no such object."""


def raise_if_final(error: Exception, address: str, is_read: bool) -> None:
    """Raise an error that a retry cannot fix, for a read or a write of an address."""
    from botocore.exceptions import NoCredentialsError, NoRegionError, ParamValidationError

    code = code_of(error)
    if code in _MISSING and is_read:
        raise MissingError(
            f"{address} is missing ({code}). HINT: list it with `aws s3 ls`; copy all of the data again."
        ) from error
    if code in _TOO_SHORT:
        raise DamagedDataError(shorter(address)) from error
    response = getattr(error, "response", None) or {}  # a timeout has one, which is None
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    is_refused = 400 <= status < 500 and status not in _PASSING_STATUS and code not in _PASSING
    if is_refused or isinstance(error, (NoCredentialsError, NoRegionError, ParamValidationError)):
        needed = "s3:GetObject on it, and s3:ListBucket on its bucket to tell missing from forbidden;"
        raise DataReadError(
            f"{address} cannot be {done(is_read)} ({code or type(error).__name__}: {error}). HINT: the role needs"
            f" {needed if is_read else 's3:PutObject on it;'} check the bucket's name and region, and the key that it is"
            " encrypted with."
        ) from error
    if isinstance(error, (DataReadError, TypeError, AttributeError, ImportError)):
        raise error


def done(is_read: bool) -> str:
    """What could not be done, as a participle."""
    return "read" if is_read else "written"


def shorter(address: str) -> str:
    """Message for an object that is too short."""
    return f"{address} is truncated. HINT: copy it again from its source, or prepare again."


def advice(error: Exception) -> str:
    """HINT for an error for which all attempts have failed."""
    code = code_of(error)
    if code in EXPIRED:
        return "the credentials have expired and are not renewed; use a role or a profile."
    if code == "RequestTimeTooSkewed":
        return "this machine's clock is wrong; set it."
    return "check the network, the VPC's S3 endpoint, and the request rate of the prefix."


def code_of(error: Exception) -> str | None:
    """S3's name of an error; its status for a response without a body; None for other errors."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code")) if isinstance(response, dict) else None
