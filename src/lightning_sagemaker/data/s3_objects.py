# SPDX-License-Identifier: Apache-2.0
"""Reads parts of S3 objects with boto3: retried where that may help, failed where it cannot, always with a deadline.

boto3's own retries end when the response starts; a truncated or stalled body is not retried. So boto3 makes one
attempt, and retries are made here.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar

from lightning_sagemaker.data.damage import DamagedDataError, DataReadError
from lightning_sagemaker.data.direct_reads import DirectReads
from lightning_sagemaker.data.s3_errors import EXPIRED, MissingError, advice, code_of, done, raise_if_final, shorter

SCHEME = "s3://"

_CHUNK = 1 << 18
_CHECKSUM = "crc32"
"""Key of the checksum in an object's metadata."""
_PAUSES = (0.1, 10.0)
"""Seconds before the second attempt, doubled for each further one; and their maximum."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Listed(TypedDict):
    """An entry of a list of objects."""

    Key: str
    Size: int
    ETag: str


class Page(TypedDict, total=False):
    """A page of a list of objects."""

    Contents: list[Listed]
    IsTruncated: bool
    NextContinuationToken: str


class Client(Protocol):
    """The part of boto3's client that is used."""

    def get_object(self, *, Bucket: str, Key: str, Range: str = ...) -> Mapping[str, Any]:
        """The content of an object, or a range of it."""

    def head_object(self, *, Bucket: str, Key: str) -> Mapping[str, Any]:
        """Size and metadata of an object."""

    def list_objects_v2(self, *, Bucket: str, Prefix: str, ContinuationToken: str = ...) -> Page:
        """A page of objects."""

    def upload_file(self, file: str, bucket: str, key: str, *, ExtraArgs: Mapping[str, object]) -> None:
        """Write a file to an object."""


@dataclass(frozen=True)
class _Clients:
    """The clients of one process.

    Args:
        client: boto3's client.
        direct: Reads ranges directly, if possible.

    """

    client: Client
    direct: DirectReads


class S3Objects:
    """Reads and writes objects; may be used by several threads, and in processes that were forked or spawned.

    Args:
        deadline: Maximum seconds of a call with all its attempts.
        timeout: Seconds without any byte after which an attempt fails.
        endpoint: URL of a server other than AWS's. Default: as boto3 finds it (``AWS_ENDPOINT_URL_S3``).

    """

    holds_no_order = True

    def __init__(self, deadline: float = 120.0, timeout: float = 10.0, endpoint: str | None = None) -> None:
        self._deadline, self._timeout, self._endpoint = deadline, timeout, endpoint
        self._process: int | None = None
        self._found: _Clients | None = None

    def __getstate__(self) -> dict[str, object]:
        own = {"_deadline": self._deadline, "_timeout": self._timeout, "_endpoint": self._endpoint}
        return {**own, "_process": None, "_found": None}

    def connect(self) -> None:
        """Create the client now, as this takes half a second of CPU time, for which the first batch would wait."""
        self._clients()

    def read(self, bucket: str, key: str, begin: int = 0, end: int | None = None) -> bytes:
        """Read the bytes from ``begin`` to ``end`` (exclusive) of an object; all of them without ``end``.

        Raises:
            DataReadError: If there is no such object, it is shorter, or it cannot be read within the deadline.

        """
        return self._try(
            lambda clients, until: self._read(clients.client, bucket, key, (begin, end), until),
            f"{SCHEME}{bucket}/{key}",
        )

    def read_into(self, bucket: str, key: str, begin: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes of an object.

        Args:
            bucket: Name of the bucket.
            key: Key of the object.
            begin: First byte.
            buffer: Output; its length is the number of bytes to read.

        Raises:
            DataReadError: As for :meth:`read`.

        """
        span = begin, begin + len(buffer)

        def attempt(clients: _Clients, until: float) -> None:
            if not clients.direct.read_into(bucket, key, begin, buffer, until):
                buffer[:] = self._read(clients.client, bucket, key, span, until)

        self._try(attempt, f"{SCHEME}{bucket}/{key}")

    def _read(self, client: Client, bucket: str, key: str, span: tuple[int, int | None], until: float) -> bytes:
        begin, end = span
        ranged = {} if end is None else {"Range": f"bytes={begin}-{end - 1}"}
        answer = client.get_object(Bucket=bucket, Key=key, **ranged)
        parts = []
        whole = str(answer.get("ContentRange", "")).rpartition("/")[2]
        if end is not None and whole.isdecimal() and int(whole) < end:
            raise DamagedDataError(shorter(f"{SCHEME}{bucket}/{key}"))
        for part in answer["Body"].iter_chunks(_CHUNK):
            parts.append(part)
            if time.monotonic() > until:
                raise TimeoutError(f"it timed out after {self._deadline:.0f} s")
        content = b"".join(parts)
        if end is not None and len(content) != end - begin:
            raise OSError(f"received {len(content)} of {end - begin} bytes")
        return content

    def checksum(self, bucket: str, key: str) -> tuple[int, str] | None:
        """Bytes of an object, and the checksum that was passed to :meth:`upload`; None if there is no such object."""

        def head(clients: _Clients, _: float) -> Mapping[str, Any]:
            try:
                return clients.client.head_object(Bucket=bucket, Key=key)
            except Exception as error:
                if code_of(error) in ("400", "403"):  # has no body that says why, unlike the response to a GET
                    clients.client.get_object(Bucket=bucket, Key=key)["Body"].close()
                raise

        try:
            found = self._try(head, f"{SCHEME}{bucket}/{key}")
        except MissingError:
            return None
        return int(found["ContentLength"]), str(found["Metadata"].get(_CHECKSUM))

    def list_objects(self, bucket: str, prefix: str) -> list[tuple[str, int, str]]:
        """Key, bytes and ETag of each object whose key begins with ``prefix``, ordered by key.

        Raises:
            DataReadError: If there is no such bucket, or it cannot be listed within the deadline.

        """
        found: list[tuple[str, int, str]] = []
        more: dict[str, str] = {}
        while True:
            page = self._try(
                lambda clients, _: clients.client.list_objects_v2(Bucket=bucket, Prefix=prefix, **more),  # noqa: B023
                f"{SCHEME}{bucket}/{prefix}",
            )
            found += [(one["Key"], one["Size"], one["ETag"]) for one in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                return sorted(found)
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def upload(self, file: Path, bucket: str, key: str, checksum: str) -> None:
        """Write a file to an object, in parts if it is large; the object appears once it is complete."""
        options = {"Metadata": {_CHECKSUM: checksum}}

        def send(clients: _Clients, _: float) -> None:
            from boto3.exceptions import S3UploadFailedError

            try:
                clients.client.upload_file(str(file), bucket, key, ExtraArgs=options)
            except S3UploadFailedError as error:
                raise error.__context__ or error from None  # the server's error, which it wraps

        self._try(send, f"{SCHEME}{bucket}/{key}", is_read=False)

    def _try(self, attempt: Callable[[_Clients, float], T], address: str, is_read: bool = True) -> T:
        until, pause, attempts = time.monotonic() + self._deadline, _PAUSES[0], 0
        while True:
            attempts += 1
            clients = self._clients()
            try:
                return attempt(clients, until)
            except Exception as error:
                raise_if_final(error, address, is_read)
                wait = pause * random.uniform(0.5, 1.5)
                if time.monotonic() + wait > until:
                    raise DataReadError(
                        f"{address} could not be {done(is_read)} in {attempts} attempts and {self._deadline:.0f} s"
                        f" ({type(error).__name__}: {error}). HINT: {advice(error)}"
                    ) from error
                _log.debug("%s: attempt %d failed (%s), retrying in %.1f s", address, attempts, error, wait)
                if code_of(error) in EXPIRED and self._found is clients:  # not if another thread has created new ones
                    self._found = None  # a new session rereads credentials from files and variables
                time.sleep(wait)
                pause = min(2 * pause, _PAUSES[1])

    def _clients(self) -> _Clients:
        if self._process != os.getpid():  # sockets cannot be shared with the parent of a fork
            self._process, self._found, self._making = os.getpid(), None, threading.Lock()
        found = self._found
        if found is None:
            with self._making:
                found = self._found = self._found or _make_clients(self._timeout, self._endpoint)
        return found


def split_address(address: str) -> tuple[str, str]:
    """Split an address into bucket and key, without a trailing slash."""
    bucket, _, key = address.removeprefix(SCHEME).partition("/")
    if not address.startswith(SCHEME) or not bucket:
        raise DataReadError(f"{address!r} is not an S3 address. HINT: write s3://bucket/prefix.")
    return bucket, key.rstrip("/")


def _make_clients(timeout: float, endpoint: str | None) -> _Clients:
    try:
        import boto3
        import botocore.session
        from botocore.config import Config
        from botocore.httpsession import get_cert_path
    except ImportError as error:
        raise DataReadError("S3 needs boto3. HINT: pip install 'lightning-sagemaker[s3]'.") from error
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    config = Config(
        connect_timeout=min(5.0, timeout),
        read_timeout=timeout,
        retries={"total_max_attempts": 1},
        max_pool_connections=16,
        response_checksum_validation="when_required",  # a range of an object has no checksum
        # Other servers rarely support bucket names as host names.
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    core = botocore.session.get_session()
    session = boto3.session.Session(botocore_session=core)
    # A separate client for presigning: with a signature version set, some kinds of buckets could not be read.
    signer = session.client("s3", endpoint_url=endpoint, config=config.merge(Config(signature_version="s3v4")))

    def sign(bucket: str, key: str, seconds: int) -> str:
        return str(signer.generate_presigned_url("get_object", {"Bucket": bucket, "Key": key}, seconds))

    certificates = str(core.get_config_variable("ca_bundle") or get_cert_path(True))
    client: Client = session.client("s3", endpoint_url=endpoint, config=config)
    return _Clients(client, DirectReads(sign, timeout, certificates))
