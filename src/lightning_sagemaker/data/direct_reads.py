# SPDX-License-Identifier: Apache-2.0
"""Reads ranges of S3 objects directly into existing buffers, over persistent connections.

boto3 takes some 2 ms of CPU time per request, mostly for building, signing and parsing the same content, and a
new buffer for each response costs as much again in page faults. Here boto3 presigns a URL once per object, a plain HTTP
connection reads any range of it, and boto3 handles everything that is not a plain success.
"""

from __future__ import annotations

import os
import ssl
import time
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import SplitResult, urlsplit

_SIGNED = 900
"""Seconds that a presigned URL is valid."""
_USED = 300
"""Seconds that a URL is used: a session's credentials are renewed when they expire within this time."""
_ADDRESSES = 4096
"""Number of cached URLs, those of the objects that were read last."""
_REFUSALS = 3
"""Consecutive responses that are neither success nor overload, after which boto3 does all reads."""
_BUSY = (429, 500, 502, 503, 504)
_CHUNK = 1 << 18

Sign = Callable[[str, str, int], str]
"""Bucket, key and seconds -> a URL of the object that is valid for that time."""


class ServerBusyError(OSError):
    """The server has responded that the request should be retried later."""


class DirectReads:
    """Reads ranges of objects, in any number of threads of one process.

    Args:
        sign: Presigns the URL of an object.
        timeout: Seconds without any byte after which a request fails.
        certificates: File or folder with the certificate authorities that boto3 trusts.

    """

    def __init__(self, sign: Sign, timeout: float, certificates: str) -> None:
        self._sign, self._timeout, self._certificates = sign, timeout, certificates
        self._addresses: OrderedDict[tuple[str, str], tuple[float, SplitResult]] = OrderedDict()
        self._idle: dict[str, list[HTTPConnection]] = {}
        self._refusals, self._has_worked, self._is_off = 0, False, False

    def read_into(self, bucket: str, key: str, begin: int, buffer: memoryview, until: float) -> bool:
        """Fill a buffer with the bytes of an object from an offset on.

        Args:
            bucket: Name of the bucket.
            key: Key of the object.
            begin: First byte.
            buffer: Output; its length is the number of bytes to read.
            until: Deadline, by ``time.monotonic``.

        Returns:
            Whether the buffer is filled; if not, boto3 has to read the range, and raises the proper error.

        Raises:
            OSError: If the connection or the server fails, or the deadline is reached; may be retried.

        """
        if self._is_off:
            return False
        address = self._address(bucket, key)
        if address is None:
            self._turn_off("a proxy is set")
            return False
        try:
            filled = self._get(address, begin, buffer, until)
        except (OSError, HTTPException) as error:
            if not self._has_worked:  # boto3 may be configured differently
                self._refuse(bucket, key, str(error))
                return False
            raise error if isinstance(error, OSError) else OSError(str(error)) from error
        if filled:
            self._refusals, self._has_worked = 0, True
        else:
            self._refuse(bucket, key, "the request failed")
        return filled

    def _refuse(self, bucket: str, key: str, why: str) -> None:
        self._addresses.pop((bucket, key), None)
        self._refusals += 1
        if self._refusals >= _REFUSALS:
            self._turn_off(why)

    def _turn_off(self, why: str) -> None:
        """Use boto3 for all reads, and log so once per job: on rank zero, in its process or its first loader worker."""
        from torch.utils.data import get_worker_info  # not at the top: plans read objects without torch

        from lightning_sagemaker._lightning import rank_zero_info

        self._is_off = True
        worker = get_worker_info()
        if worker is None or worker.id == 0:
            rank_zero_info(f"Reading text from S3 with boto3, which uses more CPU time: {why}.")

    def _address(self, bucket: str, key: str) -> SplitResult | None:
        """A cached or new presigned URL; None if a proxy is needed."""
        now = time.monotonic()
        signed, address = self._addresses.get((bucket, key), (-float(_USED), None))
        if address is None or now - signed > _USED:
            address = urlsplit(self._sign(bucket, key, _SIGNED))
            proxies = urllib.request.getproxies()
            host = address.hostname or ""
            if proxies.get(address.scheme, proxies.get("all")) and not urllib.request.proxy_bypass(host):
                return None
            self._addresses[bucket, key] = now, address
            while len(self._addresses) > _ADDRESSES:
                self._addresses.popitem(last=False)
        return address

    def _get(self, address: SplitResult, begin: int, buffer: memoryview, until: float) -> bool:
        connection, answer = self._request(address, f"bytes={begin}-{begin + len(buffer) - 1}")
        is_free = False
        try:
            if answer.status in _BUSY:
                raise ServerBusyError(f"the server returned {answer.status}")
            if answer.status != 206 or answer.headers.get("Content-Length") != str(len(buffer)):
                return False
            place = 0
            while place < len(buffer):
                count = answer.readinto(buffer[place : place + _CHUNK])
                if not count:
                    raise OSError(f"received {place} of {len(buffer)} bytes")
                place += count
                if time.monotonic() > until:
                    raise TimeoutError("the read timed out")
            answer.read()  # reads no bytes, but marks the connection as free
            is_free = True
            return True
        finally:
            if is_free:
                self._idle[address.netloc].append(connection)
            else:
                connection.close()

    def _request(self, address: SplitResult, span: str) -> tuple[HTTPConnection, HTTPResponse]:
        path, idle = address._replace(scheme="", netloc="").geturl(), self._idle.setdefault(address.netloc, [])
        while True:
            try:
                connection, is_used = idle.pop(), True
            except IndexError:
                connection, is_used = self._connect(address), False
            try:
                connection.request("GET", path, headers={"Range": span})
                return connection, connection.getresponse()
            except (OSError, HTTPException):
                connection.close()
                if not is_used:  # the server may have closed an idle connection, which is not a failure
                    raise

    def _connect(self, address: SplitResult) -> HTTPConnection:
        host, port, least = address.hostname or "", address.port, min(5.0, self._timeout)
        if address.scheme == "https":
            trusted = self._certificates
            is_folder = os.path.isdir(trusted)
            context = ssl.create_default_context(
                cafile=None if is_folder else trusted, capath=trusted if is_folder else None
            )
            connection: HTTPConnection = HTTPSConnection(host, port, timeout=least, context=context)
        else:
            connection = HTTPConnection(host, port, timeout=least)
        connection.connect()
        connection.sock.settimeout(self._timeout)
        return connection
