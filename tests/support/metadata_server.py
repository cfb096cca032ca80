"""The metadata services of AWS, GCP and Azure and a Kubernetes API server, as one process.

::

    python -m tests.support.metadata_server

prints one line of JSON with its ``url`` and, for the same over TLS, ``tls_url`` and ``certificate``, and ends
when its stdin does. Which service answers is told by the path, as they share none.

``PUT /-/FACE`` (``aws``, ``gcp``, ``azure``, ``kubernetes``; JSON) sets values of a face, which makes notices
and takes them back. ``PUT /-/behaviour`` sets the fields of :class:`Behaviour`. ``POST /-/expire`` makes all
tokens worthless. ``GET /-/told`` says what was asked.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from tests.support.certificate import make_certificate
from tests.support.metadata_faces import FACES, Azure, Face, Gcp, Reply, Request

_INTERRUPTION = "spot/instance-action"


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """How all faces answer. ``fault`` is one of :meth:`_Handler._break`, for paths with ``fault_on``."""

    faces: tuple[str, ...] = tuple(FACES)  # others answer 404
    delay: float = 0.0  # seconds before an answer
    fault: str | None = None
    fault_on: str = "/"
    clock: float = 0.0  # seconds by which the server's clock is ahead


class State:
    """What the server knows."""

    def __init__(self) -> None:
        self.faces: dict[str, Face] = {name: make() for name, (_, make) in FACES.items()}
        self.behaviour = Behaviour()
        self.asked: list[list[Any]] = []

    def answer(self, request: Request) -> Reply:
        for name, (prefix, _) in FACES.items():
            if request.path.startswith(prefix) and name in self.behaviour.faces:
                return self.faces[name].answer(request)
        return Reply(status=404, body=b"404 page not found\n")

    def administer(self, request: Request) -> Any:
        """What its own pages do."""
        page, gcp, azure = request.path.removeprefix("/-/"), self.faces["gcp"], self.faces["azure"]
        assert isinstance(gcp, Gcp)
        assert isinstance(azure, Azure)
        if page == "behaviour":
            self.behaviour = Behaviour(**json.loads(request.body))
        elif page == "expire":
            for name in ("aws", "kubernetes"):
                self.faces[name].expire()  # type: ignore[union-attr]  # the two that have tokens
        elif page in self.faces:
            with gcp.changed:
                self.faces[page].values.update(json.loads(request.body))
                azure.incarnation += page == "azure"
                gcp.changed.notify_all()
        return {"asked": self.asked}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=parts.path,
            query=dict(parse_qsl(parts.query)),
            headers=self.headers,
            body=self.rfile.read(int(self.headers.get("Content-Length", "0"))),
        )
        if parts.path.startswith("/-/"):
            return self._send(Reply(status=200, body=json.dumps(self.state.administer(request)).encode()))
        behaviour = self.state.behaviour
        time.sleep(behaviour.delay)
        if behaviour.fault is not None and behaviour.fault_on in parts.path:
            self.state.asked.append([self.command, self.path, behaviour.fault])
            return self._break(behaviour.fault)
        reply = self.state.answer(request)
        self.state.asked.append([self.command, self.path, reply.status])
        return self._send(reply)

    do_GET = do_PUT = do_POST = _handle  # noqa: N815  names that http.server looks for

    def _break(self, fault: str) -> None:
        self.close_connection = True
        if fault == "busy":
            self._send(Reply(status=503, body=b"Service Unavailable"))
        elif fault == "junk":
            self._send(Reply(status=200, body=b"<html><body>Log in to the Wi-Fi {\xff\x00", type="text/html"))
        elif fault == "redirect":
            self._send(Reply(status=302, headers={"Location": f"http://{self.headers['Host']}/elsewhere"}))
        elif fault == "huge":
            self._send(Reply(status=200, body=b"x" * (2 << 20)))
        elif fault == "not-http":
            self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        elif fault == "hang":
            time.sleep(30)
        elif fault == "drip":  # always something, never enough
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(1000):
                self.wfile.write(b"{")
                time.sleep(0.2)
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        else:
            raise ValueError(fault)

    def _send(self, reply: Reply) -> None:
        self.send_response_only(reply.status)
        now = datetime.now(UTC) + timedelta(seconds=self.state.behaviour.clock)
        headers = {"Date": format_datetime(now, usegmt=True), "Content-Type": reply.type, **reply.headers}
        headers["Content-Length"] = str(len(reply.body))
        face = next((self.state.faces[n] for n, (p, _) in FACES.items() if self.path.startswith(p)), None)
        if face is not None and face.server:
            headers["Server"] = face.server
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def handle(self) -> None:
        with suppress(OSError):  # the client went away
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name in http.server
        pass


class MetadataServer:
    """The server in a process of its own: ``with MetadataServer("aws") as server``; all faces by default."""

    def __init__(self, *faces: str) -> None:
        self._faces = faces or tuple(FACES)
        self._process: subprocess.Popen[str] | None = None
        self.url = self.tls_url = ""
        self.certificate = Path()

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.metadata_server"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        started = json.loads(self._process.stdout.readline())
        self.url, self.tls_url = started["url"], started["tls_url"]
        self.certificate = Path(started["certificate"])
        self.behave()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def behave(self, *, faces: Sequence[str] | None = None, **behaviour: Any) -> None:
        """From now on; what is not named is as at the start."""
        self._ask("PUT", "behaviour", {"faces": list(faces or self._faces), **behaviour})

    def put(self, face: str, values: Mapping[str, Any]) -> None:
        """Set values of a face, by their names in :mod:`tests.support.metadata_faces`."""
        self._ask("PUT", face, dict(values))

    def interrupt(self, action: str = "terminate", *, seconds: float = 120.0) -> None:
        """AWS says that it takes the spot instance back in so many seconds."""
        at = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.put("aws", {_INTERRUPTION: {"action": action, "time": at}})

    def spare(self) -> None:
        """AWS says nothing of the kind any more."""
        self.put("aws", {_INTERRUPTION: None})

    def expire_tokens(self) -> None:
        """No token that was given out is good any more."""
        self._ask("POST", "expire")

    def asked(self, part: str = "/") -> list[tuple[str, str, Any]]:
        """Method, path and status of what was asked so far, for paths with ``part``."""
        return [(one[0], one[1], one[2]) for one in self._ask("GET", "told")["asked"] if part in one[1]]

    def _ask(self, method: str, page: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/-/{page}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


def _listen(state: State, certificate: Path | None) -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    server.daemon_threads = True
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"


def main() -> None:
    """Serve until stdin ends."""
    state = State()
    with tempfile.TemporaryDirectory(prefix="metadata-") as folder:
        certificate = make_certificate(Path(folder))
        started = {"url": _listen(state, None), "tls_url": _listen(state, certificate)}
        print(json.dumps({**started, "certificate": str(certificate)}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
