# SPDX-License-Identifier: Apache-2.0
"""What boto3 hands out, as far as it is used here: types only, since boto3 has none."""

from __future__ import annotations

from typing import Any, Protocol


class Client(Protocol):
    """A client of one service; boto3 makes its methods at run time, from AWS's description of the service."""

    def __getattr__(self, name: str) -> Any: ...


class Keys(Protocol):
    """Keys of an account."""

    access_key: str
    secret_key: str
    token: str | None


class Credentials(Keys, Protocol):
    """Keys that may be renewed."""

    def get_frozen_credentials(self) -> Keys:
        """The keys of this moment."""


class Session(Protocol):
    """A session: credentials and a region."""

    @property
    def region_name(self) -> str:
        """Such as ``us-east-1``."""

    def client(self, service_name: str) -> Client:
        """A client of one service, such as ``s3``."""

    def get_credentials(self) -> Credentials | None:
        """Its credentials; None without any."""
