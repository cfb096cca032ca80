"""One question to a metadata service: no proxies, no redirects, and an end in time whatever it does."""

from __future__ import annotations

import io
import json
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from dray.notices.instants import instant
from dray.notices.notice import SourceError

LINK_LOCAL = "http://169.254.169.254"
"""Where AWS, GCP and Azure all answer. No name: a resolver may wait longer than a notice lasts."""

TIMEOUT = 1.0
"""Seconds for a whole exchange."""

LIMIT = 1 << 20
"""Bytes of an answer: a Kubernetes node is the largest, some tens of kilobytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text, without the white space around it."""
        return self.body.decode("utf-8", "replace").strip()

    @property
    def said_at(self) -> float | None:
        """The server's clock, where it shows one."""
        return instant(self.headers.get("date"))


def ask(
    base_url: str,
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
    trust: ssl.SSLContext | None = None,
) -> Answer:
    """Ask for ``path`` under ``base_url``, and have the whole answer within ``timeout`` seconds.

    Raises:
        SourceError: none came in time, or not one that HTTP knows.
    """
    what = f"{method} {path.partition('?')[0]}"
    try:
        connection = _connection(base_url, timeout, trust)
        try:
            prefix = urlsplit(base_url).path.rstrip("/")
            connection.request(method, prefix + path, body, dict(headers or {}))
            with connection.getresponse() as response:
                status, pairs, found = response.status, response.getheaders(), response.read(LIMIT + 1)
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        raise SourceError(f"{what}: {type(error).__name__}") from None
    if len(found) > LIMIT:
        raise SourceError(f"{what}: more than {LIMIT:,} bytes")
    return Answer(status=status, headers={name.lower(): value for name, value in pairs}, body=found)


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``; an empty one where it holds none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _connection(base_url: str, timeout: float, trust: ssl.SSLContext | None) -> HTTPConnection:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an HTTP address: {base_url}")
    deadline = time.monotonic() + timeout
    connection = (
        HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=trust)
        if parts.scheme == "https"
        else HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    )

    def response(sock: socket.socket, *arguments: Any, **named: Any) -> HTTPResponse:
        return HTTPResponse(_Timed(sock, deadline), *arguments, **named)  # type: ignore[arg-type]  # makefile is all it uses

    connection.response_class = response  # type: ignore[assignment]  # it is only called
    return connection


class _Timed:
    """A socket whose reads end at a deadline, however little each of them brings."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reads(self._sock, self._deadline))


class _Reads(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self._file = sock.makefile("rb", 0)  # keeps the descriptor open while the connection is closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
