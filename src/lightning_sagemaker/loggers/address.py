# SPDX-License-Identifier: Apache-2.0
"""The MLflow tracking URI: a folder, a server, or a SageMaker tracking server by its ARN; and its requirements."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

_SERVERS = ("http", "https")
_STORES = ("file", "sqlite", "databricks")


class TrackingError(ValueError):
    """An unusable tracking URI, or a client that is not installed."""


def tracking_address(given: str) -> str:
    """MLflow's tracking URI for ``given``, without user and password, which become MLflow's variables for this process.

    Args:
        given: A folder, a URL, or the ARN of SageMaker's managed tracking server.

    Raises:
        TrackingError: If it is none of these, or its client is not installed.

    """
    _needs("mlflow", "mlflow-skinny", "Logging to MLflow")
    if given.startswith("arn:"):
        parts = given.split(":")
        if (
            len(parts) != 6
            or parts[2] != "sagemaker"
            or not parts[5].startswith(("mlflow-tracking-server/", "mlflow-app/"))
        ):
            raise TrackingError(
                f"mlflow={given!r} was set, which is not a tracking server. HINT: its ARN has the form"
                " arn:aws:sagemaker:REGION:ACCOUNT:mlflow-tracking-server/NAME."
            )
        _needs("sagemaker_mlflow", "sagemaker-mlflow", "Logging to SageMaker's MLflow by its ARN")
        return given
    scheme, colon, _ = given.partition("://")
    if not colon and not given.startswith("file:"):
        return Path(given).expanduser().resolve().as_uri()
    scheme = scheme.split("+")[0].split(":")[0].lower()
    if scheme not in (*_SERVERS, *_STORES):
        raise TrackingError(
            f"mlflow={without_password(given)!r} was set. HINT: pass a folder, http://HOST:PORT, or the ARN of a tracking"
            " server."
        )
    if scheme in _SERVERS:
        _check_host(given)
        return keep_password(given)
    return given


def without_password(address: str) -> str:
    """``address`` without credentials, for messages."""
    try:
        parts = urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "an address"
    query = "" if parts.scheme in _SERVERS else parts.query  # a server's query may contain a token
    return urlunsplit((parts.scheme, host, parts.path, query, "")) if parts.netloc else address


def _check_host(given: str) -> None:
    try:
        parts = urlsplit(given)
        valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise TrackingError(
            f"mlflow={without_password(given)!r} was set, which has no host. HINT: use http://HOST:PORT."
        )


def keep_password(address: str) -> str:
    """``address`` without a user and password, which become MLflow's variables for this process and its children."""
    if address.partition("://")[0] not in _SERVERS:
        return address
    with contextlib.suppress(ValueError):  # an invalid URL is refused where it is used
        parts = urlsplit(address)
        if parts.username is not None:
            os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
            os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
    return without_password(address)


def _needs(module: str, package: str, what: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise TrackingError(f"{what} needs the package {package}, which is not installed. HINT: pip install {package}.")
