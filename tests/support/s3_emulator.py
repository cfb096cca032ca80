"""An object store of S3's shape that behaves as it is told: slow, busy, cut off, wrong. It serves files.

::

    python -m tests.support.s3_emulator FOLDER        serves FOLDER/BUCKET/KEY on a free loopback port

prints one line of JSON with its ``url``, and ends when its stdin does. Ranged GET, HEAD and ListObjectsV2,
with ETag, If-Match and S3's errors in XML. ``PUT /-/behaviour`` (JSON, the fields of :class:`Behaviour`)
changes how it behaves from the next request on; ``GET /-/served`` says how many bytes of each object's body
were sent.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from dray.requests import ObjectStoreOptions

PIECE = 256 * 1024  # bytes sent at once where a rate or a fault is asked for


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """How requests for objects are answered. Shares are of requests, 0 to 1; rates in bytes/s, 0 for none."""

    connection_rate: float = 0.0
    node_rate: float = 0.0
    first_byte_seconds: float = 0.0
    busy_share: float = 0.0  # 503 SlowDown
    slow_share: float = 0.0
    slow_rate: float = 1e6
    stall_share: float = 0.0  # sends half, then nothing, with the connection open
    cut_share: float = 0.0  # closes the connection half-way
    short_share: float = 0.0  # says and sends less than was asked for
    corrupt_share: float = 0.0  # one bit of the body is wrong
    whole_share: float = 0.0  # 200 and the whole object instead of the range
    elsewhere_share: float = 0.0  # Content-Range of another range
    access_key: str | None = None  # others get 403
    expires_after: int | None = None  # requests, then 403 ExpiredToken


@dataclass(frozen=True, kw_only=True)
class Request:
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


class Bucket:
    """A token bucket for all connections together."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._free_at = 0.0

    def take(self, size: int, rate: float) -> None:
        """Wait until ``size`` bytes may pass at ``rate``."""
        if not rate:
            return
        with self._guard:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 0.01) + size / rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


class Emulator:
    """The server: one thread for each connection."""

    def __init__(self, root: Path, *, seed: int = 0) -> None:
        self.root = root.resolve()
        self.behaviour = Behaviour()
        self.served: Counter[str] = Counter()
        self.requests = 0
        self._rng = random.Random(seed)
        self._guard = threading.Lock()
        self._node = Bucket()

    def serve(self, listener: socket.socket) -> None:
        """Accept connections for ever."""
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while (request := _read(stream)) is not None:
                    if not self._answer(connection, request):
                        return
            except (ConnectionError, TimeoutError, ValueError):
                return

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        """Answer one request; False when the connection must be closed."""
        if request.path.startswith("/-/"):
            return self._administer(connection, request)
        with self._guard:
            self.requests += 1
            asked = self.requests
        refusal = self._refusal(request, asked)
        if refusal is not None:
            return _error(connection, *refusal)
        if request.path.count("/") == 1 or request.path.endswith("/"):
            return _reply(connection, 200, self._listing(request), {"Content-Type": "application/xml"})
        return self._object(connection, request)

    def _refusal(self, request: Request, asked: int) -> tuple[int, str] | None:
        behaviour = self.behaviour
        signed = request.headers.get("authorization", "")
        if behaviour.access_key and f"Credential={behaviour.access_key}/" not in signed:
            return 403, "InvalidAccessKeyId"
        if behaviour.expires_after is not None and asked > behaviour.expires_after:
            return 403, "ExpiredToken"
        return (503, "SlowDown") if self._happens(behaviour.busy_share) else None

    def _happens(self, share: float) -> bool:
        with self._guard:
            return share > 0 and self._rng.random() < share

    def _object(self, connection: socket.socket, request: Request) -> bool:
        file = (self.root / request.path.lstrip("/")).resolve()
        if not file.is_relative_to(self.root) or not file.is_file():
            return _error(connection, 404, "NoSuchKey")
        size, etag = file.stat().st_size, etag_of(file)
        if request.headers.get("if-match", etag) not in (etag, "*"):
            return _error(connection, 412, "PreconditionFailed")
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if request.method == "HEAD":
            return _reply(connection, 200, None, {**headers, "Content-Length": str(size)})
        span = _range(request.headers.get("range"), size)
        if span is None:
            return _error(connection, 416, "InvalidRange")
        return self._send(connection, file, span, headers, ranged="range" in request.headers)

    def _send(
        self,
        connection: socket.socket,
        file: Path,
        span: tuple[int, int],
        headers: dict[str, str],
        *,
        ranged: bool,
    ) -> bool:
        behaviour = self.behaviour
        start, end = span
        size = file.stat().st_size
        if ranged and self._happens(behaviour.whole_share):
            start, end, ranged = 0, size, False
        if self._happens(behaviour.short_share):
            end = start + (end - start) // 2
        if ranged:
            shift = 1 if self._happens(behaviour.elsewhere_share) else 0
            headers = {**headers, "Content-Range": f"bytes {start + shift}-{end - 1 + shift}/{size}"}
        time.sleep(behaviour.first_byte_seconds)
        _head(connection, 206 if ranged else 200, {**headers, "Content-Length": str(end - start)})
        stop = end
        if cut := self._happens(behaviour.cut_share):
            stop = start + (end - start) // 2
        if stall := self._happens(behaviour.stall_share):
            stop = start + (end - start) // 2
        self._body(connection, file, start, stop)
        if stall:
            time.sleep(3600)
        return not cut

    def _body(self, connection: socket.socket, file: Path, start: int, end: int) -> None:
        behaviour = self.behaviour
        rate = behaviour.slow_rate if self._happens(behaviour.slow_share) else behaviour.connection_rate
        corrupt = self._happens(behaviour.corrupt_share)
        plain = not (rate or behaviour.node_rate or corrupt)
        began, at = time.monotonic(), start
        name = str(file.relative_to(self.root))
        with file.open("rb") as source:
            while at < end:
                step = min(end - at, (end - at) if plain else PIECE)
                self._node.take(step, behaviour.node_rate)
                if corrupt:
                    source.seek(at)
                    piece = bytearray(source.read(step))
                    piece[len(piece) // 2] ^= 1
                    connection.sendall(piece)
                    corrupt = False
                    sent = step
                else:
                    sent = os.sendfile(connection.fileno(), source.fileno(), at, step)
                at += sent
                with self._guard:
                    self.served[name] += sent
                if rate:
                    time.sleep(max(0.0, began + (at - start) / rate - time.monotonic()))

    def _listing(self, request: Request) -> bytes:
        bucket = request.path.strip("/")
        prefix = request.query.get("prefix", [""])[0]
        after = request.query.get("continuation-token", request.query.get("start-after", [""]))[0]
        most = int(request.query.get("max-keys", ["1000"])[0])
        base = self.root / bucket
        keys = sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())
        found = [key for key in keys if key.startswith(prefix) and key > after]
        page, more = found[:most], len(found) > most
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{(base / key).stat().st_size}</Size>"
            f"<ETag>{escape(etag_of(base / key))}</ETag>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}"
            "</ListBucketResult>"
        ).encode()

    def _administer(self, connection: socket.socket, request: Request) -> bool:
        if (request.method, request.path) == ("PUT", "/-/behaviour"):
            self.behaviour = Behaviour(**json.loads(request.body))
            self.requests = 0
        elif (request.method, request.path) == ("POST", "/-/forget"):
            with self._guard:
                self.served.clear()
        elif (request.method, request.path) != ("GET", "/-/served"):
            return _error(connection, 404, "NoSuchPage")
        with self._guard:
            state = {
                "behaviour": asdict(self.behaviour),
                "served": dict(self.served),
                "requests": self.requests,
            }
        return _reply(connection, 200, json.dumps(state).encode(), {"Content-Type": "application/json"})


class EmulatorProcess:
    """The emulator, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        command = [sys.executable, "-m", "tests.support.s3_emulator", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url: str = json.loads(self._process.stdout.readline())["url"]

    @property
    def options(self) -> ObjectStoreOptions:
        """How dray reaches it."""
        return ObjectStoreOptions(
            endpoint=self.url,
            region="us-east-1",
            access_key_id="key",
            secret_access_key="secret",
            allow_http=True,
        )

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def behave(self, **behaviour: Any) -> None:
        """From now on, and forget what was served."""
        self.served()
        self.ask("PUT", "behaviour", behaviour)
        self.ask("POST", "forget")

    def served(self) -> dict[str, int]:
        """Bytes of bodies that were sent, by object, once no more are: they are counted after the sending."""
        before, found = None, dict(self.ask("GET", "served")["served"])
        while found != before:
            time.sleep(0.1)
            before, found = found, dict(self.ask("GET", "served")["served"])
        return found

    def ask(self, method: str, page: str, body: Any = None) -> dict[str, Any]:
        """One request to its own pages."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/-/{page}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


def etag_of(file: Path) -> str:
    """Changes with the file; its content is not read, which would take long."""
    stat = file.stat()
    return '"' + hashlib.md5(f"{stat.st_mtime_ns} {stat.st_size}".encode()).hexdigest() + '"'


def _read(stream: Any) -> Request | None:
    line = stream.readline(65_536).decode("latin-1")
    if not line.strip():
        return None
    method, target, _ = line.split(" ", 2)
    headers = {}
    while (line := stream.readline(65_536).decode("latin-1").strip()) != "":
        name, value = line.split(":", 1)
        headers[name.strip().lower()] = value.strip()
    parts = urlsplit(target)
    body = stream.read(int(headers.get("content-length", "0")))
    return Request(
        method=method, path=unquote(parts.path), query=parse_qs(parts.query), headers=headers, body=body
    )


def _range(value: str | None, size: int) -> tuple[int, int] | None:
    """The half-open range of ``bytes=a-b``, ``a-`` and ``-n``; the whole where none is asked for."""
    if value is None:
        return 0, size
    first, _, last = value.removeprefix("bytes=").partition("-")
    start, end = (max(size - int(last), 0), size) if not first else (int(first), int(last or size - 1) + 1)
    return (start, min(end, size)) if start < min(end, size) else None


def _head(connection: socket.socket, status: int, headers: dict[str, str]) -> None:
    reason = {200: "OK", 206: "Partial Content"}.get(status, "Error")
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    connection.sendall("\r\n".join(lines).encode())


def _reply(connection: socket.socket, status: int, body: bytes | None, headers: dict[str, str]) -> bool:
    if body is not None:
        headers = {**headers, "Content-Length": str(len(body))}
    _head(connection, status, headers)
    connection.sendall(body or b"")
    return True


def _error(connection: socket.socket, status: int, code: str) -> bool:
    body = f"<Error><Code>{code}</Code><Message>{code}</Message><RequestId>0</RequestId></Error>".encode()
    return _reply(connection, status, body, {"Content-Type": "application/xml"})


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    emulator = Emulator(arguments.folder, seed=arguments.seed)
    threading.Thread(target=emulator.serve, args=(listener,), daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
