"""Nodes of a cluster give each other what they have fetched and verified of a model.

Each node serves the ready chunks of its models to every client that knows its token, and fetches its share
of the chunks from the origin. Of N nodes that start together, each asks the origin for about one N-th. What a
peer sends is verified like what the origin sends.
"""

from __future__ import annotations

import hmac
import http.client
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote, urlsplit

from dray.weights.fetch.chunks import Chunk
from dray.weights.fetch.origin import Address
from dray.weights.fetch.schedule import Turn
from dray.weights.node.local import LocalModel

_LOOK_SECONDS = 0.25
_TIMEOUT = 5.0
STRANGER_SECONDS = 5.0
"""For a connection to show the cluster's token."""
MAX_STRANGERS = 64
"""Connections at a time that have not shown it: more are closed at once, and their peers ask again."""
_IDLE_SECONDS = 60.0
DIGEST_HEADER = "Dray-Digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Where a node serves its chunks. The token is a secret of the cluster."""

    name: str
    url: str
    token: str = field(repr=False)


class PeerServer:
    """Serves the ready chunks of this node's models: ``GET /KEY/marks`` and ranged ``GET /KEY/FILE``."""

    def __init__(self, name: str, host: str, models: Callable[[str], LocalModel | None]) -> None:
        handler = type(
            "Handler", (_Handler,), {"models": staticmethod(models), "token": secrets.token_hex(32)}
        )
        self._server = _Server((host, 0), handler)
        port = self._server.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        self.peer = Peer(name=name, url=f"http://{shown}:{port}", token=handler.token)  # type: ignore[attr-defined]
        threading.Thread(target=self._server.serve_forever, name="dray-peers", daemon=True).start()

    def stop(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """One thread per connection. Few connections have shown no token yet, and none of them lasts long."""

    daemon_threads = True
    request_queue_size = 128  # of the kernel: the nodes of a cluster come at the same time

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.strangers = threading.BoundedSemaphore(MAX_STRANGERS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it if there are too many strangers."""
        if not self.strangers.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self.strangers.release()
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a connection that was cut is asked for again."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = STRANGER_SECONDS  # of a read or a write; longer once the token is known
    models: Callable[[str], LocalModel | None]
    token: str
    known = False

    def handle(self) -> None:
        """The requests of a connection. A stranger has its time for all of its first request's bytes."""
        server = cast("_Server", self.server)
        self._late = threading.Timer(STRANGER_SECONDS, self._end_stranger)
        self._late.daemon = True
        self._late.start()
        try:
            super().handle()
        finally:
            self._late.cancel()
            if not self.known:
                server.strangers.release()

    def _end_stranger(self) -> None:
        if not self.known:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """One request of a peer."""
        said = self.headers.get("Authorization", "")
        if not hmac.compare_digest(said.encode(), f"Bearer {self.token}".encode()):
            self.close_connection = True
            self._refuse(403)
            return
        if not self.known:
            self.known = True
            self._late.cancel()
            self.connection.settimeout(_IDLE_SECONDS)
            cast("_Server", self.server).strangers.release()
        key, _, name = self.path.lstrip("/").partition("/")
        model = self.models(key)
        if model is None:
            self._refuse(404)
        elif name == "marks":
            self._marks(model)
        else:
            self._chunk(model, unquote(name))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Nothing: requests of peers are not news."""

    def _marks(self, model: LocalModel) -> None:
        marks = model.marks()
        self._head(200, len(marks), {})
        self.wfile.write(marks)

    def _chunk(self, model: LocalModel, name: str) -> None:
        number = self._number(model, name)
        if number is None or not model.ready.ready(range(number, number + 1)):
            self._refuse(404)
            return
        chunk, file = model.plan.chunks[number], model.manifest.files[model.plan.chunks[number].file]
        try:
            source = model.paths.file(file.name).open("rb")
        except FileNotFoundError:
            self._refuse(404)
            return
        with source:
            if not model.ready.ready(range(number, number + 1)):  # the file is a new one: it was removed
                self._refuse(404)
                return
            self._send(source, chunk, file.size, model.ready.digest(number))

    def _send(self, source: BinaryIO, chunk: Chunk, size: int, digest: bytes) -> None:
        """The chunk of a file of ``size`` bytes; a connection that does not take all of it is closed."""
        try:
            span = f"bytes {chunk.start}-{chunk.end - 1}/{size}"
            self._head(206, chunk.size, {"Content-Range": span, DIGEST_HEADER: digest.hex()})
            self.wfile.flush()
            # Not os.sendfile: with a timeout the socket does not block, and its buffer is soon full.
            sent = self.connection.sendfile(source, chunk.start, chunk.size)
        except OSError:
            sent = 0
        if sent < chunk.size:
            self.close_connection = True

    def _number(self, model: LocalModel, name: str) -> int | None:
        """The chunk that is asked for: exactly one, by its range."""
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        first, _, last = wanted.partition("-")
        if not (first.isdigit() and last.isdigit()):
            return None
        for number, file in enumerate(model.manifest.files):
            if file.name == name:
                numbers = model.plan.covering(number, int(first), int(last) + 1)
                if len(numbers) != 1:
                    return None
                chunk = model.plan.chunks[numbers[0]]
                return numbers[0] if (chunk.start, chunk.end) == (int(first), int(last) + 1) else None
        return None

    def _refuse(self, status: int) -> None:
        self._head(status, 0, {})

    def _head(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()


class PeerView:
    """What the other nodes have of one model: asked four times a second, beside the transfer that uses it."""

    def __init__(self, key: str, me: str, others: Callable[[], Mapping[str, Peer]]) -> None:
        self._key = key
        self._me = me
        self._others = others
        self._marks: dict[str, bytes] = {}
        self._known: Mapping[str, Peer] = dict(others())
        self._names = _ring(me, self._known)  # until one is known not to answer
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="dray-peers-look", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def turn(self, chunk: int) -> Turn:
        """When this node may ask the origin for a chunk: stand-ins follow its home in the order of names."""
        names, place = self._names
        home = chunk % len(names)
        return Turn((place - home) % len(names), names[home])

    def look(self) -> Mapping[str, bytes]:
        """Which chunks each live peer has, one byte per chunk."""
        return dict(self._marks)

    def address(self, peer: str, file: str) -> Address:
        """Where a peer serves a file."""
        found = self._known[peer]
        return Address(
            url=f"{found.url}/{self._key}/{quote(file)}", headers={"Authorization": f"Bearer {found.token}"}
        )

    def _watch(self) -> None:
        connections: dict[str, http.client.HTTPConnection] = {}
        while not self._over.is_set():
            known = dict(self._others())
            self._known = known
            found = {}
            for name, peer in known.items():
                marks = _asked(connections, peer, self._key)
                if marks is not None:
                    found[name] = marks
            self._marks = found
            self._names = _ring(self._me, found)
            self._over.wait(_LOOK_SECONDS)
        for connection in connections.values():
            connection.close()


def _ring(me: str, others: Iterable[str]) -> tuple[list[str], int]:
    """The names of all nodes in their order, and the place of this one among them."""
    names = sorted({me, *others})
    return names, names.index(me)


def _asked(connections: dict[str, http.client.HTTPConnection], peer: Peer, key: str) -> bytes | None:
    """A peer's marks, none yet where it does not hold the model; None where it does not answer."""
    connection = connections.get(peer.url)
    if connection is None:
        connection = http.client.HTTPConnection(urlsplit(peer.url).netloc, timeout=_TIMEOUT)
        connections[peer.url] = connection
    with suppress(OSError, http.client.HTTPException):
        connection.request("GET", f"/{key}/marks", headers={"Authorization": f"Bearer {peer.token}"})
        response = connection.getresponse()
        body = response.read()
        return body if response.status == 200 else b""
    connection.close()
    del connections[peer.url]
    return None
