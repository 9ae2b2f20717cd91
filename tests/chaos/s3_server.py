# SPDX-License-Identifier: Apache-2.0
"""A server with the API of S3 (moto, on loopback), and one before it that fails on purpose."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
import urllib.parse
from datetime import datetime, timezone
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from moto.server import ThreadedMotoServer


class Servers:
    """Both of them.

    Attributes:
        endpoint: Of the one that fails.
        faults: What happens to the next requests, one each: ``500``, ``503``, ``drop``, ``slow``, ``hang`` (no answer),
            ``expired`` (credentials), ``skewed`` (this machine's clock), ``truncated`` (a body that is too short, with
            a length that fits), ``flipped`` (one bit), ``broken body`` (too short for its length), ``trickle`` (a byte
            a second), a status and a code as in ``403 AccessDenied``, or ``pass`` for nothing.
        refused_key: Credentials that have expired.
        clock: Seconds that the server's clock is ahead; what is signed more than a quarter of an hour off is refused.
        latency: Seconds before each answer.
        requests: Methods and paths that arrived.

    """

    def __init__(self) -> None:
        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._moto.start()
        host, port = self._moto.get_host_and_port()
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.refused_key: str | None = None
        self.latency, self.clock = 0.0, 0.0
        self._front = _Front(("127.0.0.1", 0), _handler(self, host, port))
        threading.Thread(target=self._front.serve_forever, daemon=True).start()
        self.direct = f"http://{host}:{port}"
        self.endpoint = f"http://127.0.0.1:{self._front.server_port}"

    def close(self) -> None:
        """Stop both."""
        self._front.shutdown()
        self._moto.stop()


class _Front(ThreadingHTTPServer):
    request_queue_size = 128  # with the default of 5, a connection among many is tried again after a second


def _is_skewed(path: str, headers: Message, ahead: float) -> bool:
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
    stamp = headers.get("X-Amz-Date") or query["X-Amz-Date"][0]
    signed = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    return abs(time.time() + ahead - signed.timestamp()) > 900


def _handler(servers: Servers, host: str, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            servers.requests.append(f"{self.command} {self.path}")
            fault = servers.faults.pop(0) if servers.faults else None
            if fault == "drop":
                self.connection.close()
                self.close_connection = True
                return
            if fault == "slow":
                time.sleep(1.0)
            if fault == "hang":
                time.sleep(3.0)
                self.close_connection = True
                return
            if servers.latency:
                time.sleep(servers.latency)
            signed = urllib.parse.unquote(self.path) + self.headers.get("Authorization", "")
            refused = servers.refused_key and f"Credential={servers.refused_key}/" in signed
            if fault == "expired" or refused:
                self._answer(400, {}, b"<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>")
                return
            if fault == "skewed" or (servers.clock and _is_skewed(self.path, self.headers, servers.clock)):
                self._answer(403, {}, b"<Error><Code>RequestTimeTooSkewed</Code><Message>too large</Message></Error>")
                return
            if fault and " " in fault and fault[0].isdigit():
                status, code = fault.split()
                self._answer(int(status), {}, f"<Error><Code>{code}</Code></Error>".encode())
                return
            if fault in ("500", "503"):
                self._answer(int(fault), {}, b"<Error><Code>SlowDown</Code></Error>")
                return
            connection = http.client.HTTPConnection(host, port, timeout=30)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if fault == "truncated":
                content = content[: len(content) // 2]
            if fault == "flipped":
                content = content[:-1] + bytes([content[-1] ^ 1])
            self._answer(answer.status, dict(answer.getheaders()), content, fault)

        def _answer(self, status: int, headers: dict[str, str], body: bytes, fault: str | None = None) -> None:
            self.send_response(status)
            length = headers.get("Content-Length", str(len(body))) if self.command == "HEAD" else str(len(body))
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command == "HEAD":
                return
            if fault == "broken body":
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
            elif fault == "trickle":
                self._trickle(body)
            else:
                self.wfile.write(body)

        def _trickle(self, body: bytes) -> None:
            with contextlib.suppress(OSError):
                for place in range(4):
                    self.wfile.write(body[place : place + 1])
                    time.sleep(1.0)
            self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
