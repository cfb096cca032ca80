"""An object store of S3's shape that behaves as it is told: slow, busy, cut off, wrong. It holds files.

::

    python -m tests.support.s3_emulator FOLDER        serves FOLDER/BUCKET/KEY on a free loopback port

prints one line of JSON with its ``url``, and ends when its stdin does. Ranged GET, HEAD and ListObjectsV2,
with ETag, If-Match, presigned URLs and S3's errors in XML; objects are written as
:mod:`tests.support.s3_writes` says. ``--tls`` is for https, with a ``certificate``
made at the start; ``--processes N`` for more speed, on one port and with one memory of what was served.

FOLDER/hub/ORG/NAME is a model repository as the Hugging Face hub shows it, on the pages
``/api/models/ORG/NAME/revision/REV`` and ``/ORG/NAME/resolve/REV/FILE``, which for safetensors redirects to
``http://127.0.0.1:PORT/hub/ORG/NAME/FILE?Signature=...``: another host, to who asked ``localhost``. Its
commit changes with its files; the one before is then gone. :mod:`tests.support.hub_datasets` adds datasets.

``PUT /-/behaviour`` (JSON, the fields of :class:`Behaviour`) changes how it behaves from the next request on;
``GET /-/served`` says how many bytes of each object's body were sent.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import nullcontext
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from dray.storage import ObjectStoreOptions
from tests.support.certificate import make_certificate
from tests.support.hub_datasets import DatasetPage, dataset_answer, dataset_page
from tests.support.s3_pages import (
    HUB,
    HubPage,
    Refusal,
    Request,
    hub_commit,
    hub_files,
    hub_info,
    hub_page,
    hub_redirect,
    hub_refusal,
    linked_etag,
    listing,
    not_signed,
    range_of,
    read_request,
    refuse,
    reply,
    reply_json,
    send_head,
)
from tests.support.s3_state import Behaviour, State, Turn
from tests.support.s3_writes import known, list_uploads, part_of_upload, write, writes

PIECE = 256 * 1024  # bytes sent at once where a rate, a fault or TLS asks for it


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A request, where to answer it, and what holds for it."""

    connection: socket.socket
    request: Request
    turn: Turn


@dataclass(frozen=True, kw_only=True)
class File:
    """An open file, and the name that its bytes are counted under."""

    source: FileIO
    name: str
    size: int


class Emulator:
    """One process of the server: one thread for each connection."""

    def __init__(self, root: Path, state: State, *, seed: int = 0, certificate: Path | None = None) -> None:
        self.root = root
        self.state = state
        self._rng = random.Random(seed)
        self._guard = threading.Lock()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
        if self._tls and certificate:
            self._tls.load_cert_chain(certificate, certificate.with_suffix(".key"))

    def serve(self, listener: socket.socket) -> None:
        """Accept connections for ever."""
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, accepted: socket.socket) -> None:
        try:
            connection = self._tls.wrap_socket(accepted, server_side=True) if self._tls else accepted
            with connection, connection.makefile("rb") as stream:
                while (request := read_request(stream, connection)) is not None:
                    if not self._answer(connection, request):
                        return
        except (ConnectionError, TimeoutError, ValueError, ssl.SSLError):
            return

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        """Answer one request; False when the connection must be closed."""
        if request.path.startswith("/-/"):
            return self._administer(connection, request)
        page = dataset_page(self.root, request) or hub_page(self.root, request.path)
        is_object = not request.lists if page is None else page.file is not None and not page.is_large
        turn = self.state.turn(is_object=is_object)
        if refusal := self._refusal(request, page, turn):
            return refuse(connection, request, refusal)
        if writes(request):
            return self._write(connection, request, turn)
        exchange = Exchange(connection=connection, request=request, turn=turn)
        if page is not None:
            return self._hub(exchange, page)
        if is_object:
            return self._object(exchange, request.path.lstrip("/"), {})
        if "uploads" in request.query:
            found = list_uploads(self.root, request).encode()
            return reply(connection, request, 200, found, {"Content-Type": "application/xml"})
        found = listing(self.root, request, changed=turn.changed)
        return reply(connection, request, 200, found, {"Content-Type": "application/xml"})

    def _write(self, connection: socket.socket, request: Request, turn: Turn) -> bool:
        conditional = "if-match" in request.headers or "if-none-match" in request.headers
        if conditional and turn.behaviour.no_conditions:
            return refuse(connection, request, Refusal(status=501, code="NotImplemented"))
        if conditional and self._happens(turn.behaviour.conflict_share):
            return refuse(connection, request, Refusal(status=409, code="ConditionalRequestConflict"))
        name = os.path.normpath(request.path).lstrip("/")
        done = write(self.root, request, name, equal_parts=turn.behaviour.equal_parts)
        if isinstance(done, Refusal):
            return refuse(connection, request, done)
        headers = {"Content-Type": "application/xml", **done.headers}
        return reply(connection, request, done.status, done.body.encode(), headers)

    def _refusal(self, request: Request, page: HubPage | None, turn: Turn) -> Refusal | None:
        behaviour = turn.behaviour
        if refusal := not_signed(request, page, behaviour.access_key):
            return refusal
        if behaviour.expires_after is not None and turn.asked > behaviour.expires_after:
            return Refusal(status=403, code="ExpiredToken")
        if behaviour.refuses and behaviour.refuses == part_of_upload(request):
            return Refusal(status=403, code="AccessDenied")
        return Refusal(status=503, code="SlowDown") if self._happens(behaviour.busy_share) else None

    def _happens(self, share: float) -> bool:
        with self._guard:
            return share > 0 and self._rng.random() < share

    def _hub(self, exchange: Exchange, page: HubPage) -> bool:
        connection, request, changed = exchange.connection, exchange.request, exchange.turn.changed
        files = hub_files(self.root, page)
        if refusal := hub_refusal(page, files):
            return refuse(connection, request, refusal)
        if page.file is None and isinstance(page, DatasetPage):
            entries = exchange.turn.behaviour.page_entries
            found = dataset_answer(page, files, request, changed=changed, entries=entries)
            if isinstance(found, Refusal):
                return refuse(connection, request, found)
            return reply_json(connection, request, *found)
        if page.file is None:
            blobs = request.query.get("blobs", "").lower() in ("true", "1")
            return reply_json(connection, request, hub_info(page, files, changed=changed, blobs=blobs))
        headers = {"X-Repo-Commit": hub_commit(files, changed=changed)}
        if not page.is_large:
            return self._object(exchange, f"{HUB}/{page.repository}/{page.file}", headers)
        base = "{}://{}:{}".format("https" if self._tls else "http", *connection.getsockname())
        headers |= hub_redirect(page, files[page.file], base, changed=changed)
        return reply(connection, request, 302, b"", headers)

    def _object(self, exchange: Exchange, path: str, headers: dict[str, str]) -> bool:
        request, name = exchange.request, os.path.normpath(f"/{path}").lstrip("/")  # never above the root
        try:
            source = (self.root / name).open("rb", buffering=0)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return refuse(exchange.connection, request, Refusal(status=404, code="NoSuchKey"))
        with source:
            stat = os.fstat(source.fileno())
            etag, own = known(self.root, name, stat, changed=exchange.turn.changed)
            if request.headers.get("if-match", etag) not in (etag, "*"):
                return refuse(exchange.connection, request, Refusal(status=412, code="PreconditionFailed"))
            headers = {**headers, **own, "ETag": etag, "Accept-Ranges": "bytes"}
            headers["Content-Type"] = "application/octet-stream"
            if request.method == "HEAD":
                send_head(exchange.connection, 200, {**headers, "Content-Length": str(stat.st_size)})
                return True
            span = range_of(request.headers.get("range"), stat.st_size)
            if span is None:
                return refuse(exchange.connection, request, Refusal(status=416, code="InvalidRange"))
            file = File(source=source, name=name, size=stat.st_size)
            return self._send(exchange, file, span, headers)

    def _send(self, exchange: Exchange, file: File, span: tuple[int, int], headers: dict[str, str]) -> bool:
        behaviour, (start, end) = exchange.turn.behaviour, span
        ranged = "range" in exchange.request.headers
        if ranged and self._happens(behaviour.whole_share):
            start, end, ranged = 0, file.size, False
        if self._happens(behaviour.short_share):
            end = start + (end - start) // 2
        if ranged:
            shift = 1 if self._happens(behaviour.elsewhere_share) else 0
            headers["Content-Range"] = f"bytes {start + shift}-{end - 1 + shift}/{file.size}"
        time.sleep(behaviour.first_byte_seconds)
        headers["Content-Length"] = str(end - start)
        send_head(exchange.connection, 206 if ranged else 200, headers)
        stop = end
        if cut := self._happens(behaviour.cut_share):
            stop = start + (end - start) // 2
        if stall := self._happens(behaviour.stall_share):
            stop = start + (end - start) // 2
        self._body(exchange.connection, behaviour, file, start, stop)
        if stall:
            time.sleep(3600)
        return not cut

    def _body(
        self, connection: socket.socket, behaviour: Behaviour, file: File, start: int, end: int
    ) -> None:
        rate = behaviour.slow_rate if self._happens(behaviour.slow_share) else behaviour.connection_rate
        corrupt = self._happens(behaviour.corrupt_share)
        whole = not (rate or behaviour.node_rate or corrupt or self._tls)
        memory = memoryview(bytearray(0 if whole else PIECE))
        began, at = time.monotonic(), start
        while at < end:
            step = end - at if whole else min(end - at, PIECE)
            self.state.wait(step, behaviour.node_rate)
            if corrupt or self._tls:
                sent = _copy(connection, file, at, memory[:step], corrupt=corrupt)
                corrupt = False
            else:
                sent = os.sendfile(connection.fileno(), file.source.fileno(), at, step)
            if not sent:
                raise ConnectionError(f"{file.name} ends before byte {end}")
            at += sent
            self.state.count(file.name, sent)
            if rate:
                time.sleep(max(0.0, began + (at - start) / rate - time.monotonic()))

    def _administer(self, connection: socket.socket, request: Request) -> bool:
        if (request.method, request.path) == ("PUT", "/-/behaviour"):
            self.state.behave(Behaviour(**json.loads(request.body)))
        elif (request.method, request.path) == ("POST", "/-/forget"):
            self.state.forget()
        elif (request.method, request.path) != ("GET", "/-/served"):
            return refuse(connection, request, Refusal(status=404, code="NoSuchPage"))
        return reply_json(connection, request, {**self.state.told(), "process": os.getpid()})


class EmulatorProcess:
    """The emulator, in a process of its own, or in several that share one port."""

    def __init__(self, folder: Path, *, processes: int = 1, tls: bool = False) -> None:
        self.root = folder
        command = [sys.executable, "-m", "tests.support.s3_emulator", str(folder)]
        command += ["--processes", str(processes), *(["--tls"] if tls else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        started = json.loads(self._process.stdout.readline())
        self.url: str = started["url"]
        self._certificate: str | None = started["certificate"]
        self._trust = ssl.create_default_context(cafile=self._certificate) if tls else None

    @property
    def certificate(self) -> Path:
        """What clients must trust (PEM; ``SSL_CERT_FILE`` for many of them); there until it stops."""
        assert self._certificate is not None, "only with tls=True"
        return Path(self._certificate)

    @property
    def options(self) -> ObjectStoreOptions:
        """How dray reaches it."""
        return ObjectStoreOptions(
            endpoint=self.url,
            region="us-east-1",
            access_key_id="key",
            secret_access_key="secret",
            allow_http=self._certificate is None,
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
        with urllib.request.urlopen(request, timeout=10, context=self._trust) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


def _copy(connection: socket.socket, file: File, at: int, piece: memoryview, *, corrupt: bool) -> int:
    """Send through memory, as TLS and a wrong bit need it: as many bytes as ``piece`` takes."""
    read = os.preadv(file.source.fileno(), [piece], at)
    if corrupt:
        piece[read // 2] ^= 1
    connection.sendall(piece[:read])
    return read


def _serve(listener: socket.socket, emulator: Emulator, until: int) -> None:
    """As long as the other end of the pipe ``until`` is open."""
    threading.Thread(target=emulator.serve, args=(listener,), daemon=True).start()
    while os.read(until, 4096):
        pass


def _run(root: Path, processes: int, seed: int, certificate: Path | None) -> None:
    """All processes; the others end with the first one, however that ends."""
    listener, state = socket.create_server(("127.0.0.1", 0), backlog=1024), State()
    ended, alive = os.pipe()
    others = []
    for number in range(1, processes):
        if other := os.fork():
            others.append(other)
            continue
        os.close(alive)
        _serve(listener, Emulator(root, state, seed=seed + number, certificate=certificate), ended)
        os._exit(0)
    url = f"{'https' if certificate else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
    print(json.dumps({"url": url, "certificate": certificate and str(certificate)}), flush=True)
    _serve(listener, Emulator(root, state, seed=seed, certificate=certificate), sys.stdin.fileno())
    os.close(alive)
    for other in others:
        os.waitpid(other, 0)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tls", action="store_true")
    arguments = parser.parse_args()
    root: Path = arguments.folder.resolve()
    for file in (root / HUB).rglob("*.safetensors"):
        linked_etag(file, changed=False)  # takes long, and the forked processes then know it too
    with tempfile.TemporaryDirectory(prefix="emulator-") if arguments.tls else nullcontext() as folder:
        certificate = make_certificate(Path(folder)) if folder else None
        _run(root, arguments.processes, arguments.seed, certificate)


if __name__ == "__main__":
    main()
