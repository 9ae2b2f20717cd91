# SPDX-License-Identifier: Apache-2.0
"""The client of Amazon's connector, and a stream of it that computes a checksum."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Protocol

from lightning_sagemaker.checkpoint.atomic_write import CheckpointError

if TYPE_CHECKING:
    from s3torchconnector._s3client import S3Client


class Listed(Protocol):
    """An object in a list."""

    key: str
    size: int
    etag: str


class Stream(Protocol):
    """A stream that an object is written to."""

    def write(self, data: bytes) -> object:
        """Write all of ``data``."""


class Counted:
    """A stream that counts its bytes and computes their checksum."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.size = self.crc = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of ``data``; return its length."""
        content = bytes(data)
        self.size += len(content)
        self.crc = zlib.crc32(content, self.crc)
        self._stream.write(content)
        return len(content)

    def flush(self) -> None:
        """Nothing to do: an object appears once it is complete."""


def make_client(region: str, endpoint: str | None, options: dict[str, Any]) -> S3Client:
    """A client.

    Args:
        region: Region of the buckets.
        endpoint: URL of a server other than AWS's.
        options: Options of ``s3torchconnector.S3ClientConfig``.

    Raises:
        CheckpointError: If s3torchconnector is not installed.

    """
    try:
        from s3torchconnector import S3ClientConfig
        from s3torchconnector._s3client import S3Client
    except ImportError as error:
        raise CheckpointError(
            "S3CheckpointIO needs s3torchconnector. HINT: pip install 'lightning-sagemaker[s3]'."
        ) from error
    return S3Client(region, endpoint=endpoint, s3client_config=S3ClientConfig(**options))
