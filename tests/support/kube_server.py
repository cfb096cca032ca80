"""The API server of Kubernetes, as far as dray and KubeRay's operator ask it, in a process of its own.

::

    python -m tests.support.kube_server [PORT]      prints its port, and ends when its stdin does

It keeps objects, judges each RayCluster by KubeRay's schema, and answers with the faults that a test
asks for.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.kube_store import KubeStore

TOKEN = "let-me-in"
_CONTROL = "/control/"
_PROXY = re.compile(r"/api/v1/namespaces/[^/]+/services/(?P<name>[^:]+):\d+/proxy/(?P<path>.*)")


class KubeServer:
    """The server, seen from a test."""

    def __init__(self, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kube_server", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    @classmethod
    def at(cls, url: str) -> KubeServer:
        """One that another process has started."""
        found = cls.__new__(cls)
        found.url = url
        return found

    def kubeconfig(self, folder: Path, token: str = TOKEN) -> str:
        """A file with the credentials."""
        file = folder / "kubeconfig"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        file.write_text(json.dumps(config))
        return str(file)

    def service_account(self, folder: Path) -> Path:
        """As Kubernetes mounts it into a pod."""
        account = folder / "account"
        account.mkdir(exist_ok=True)
        (account / "token").write_text(TOKEN)
        (account / "namespace").write_text("default")
        return account

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """As an administrator."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.loads(response.read() or b"null")

    def fail(self, method: str, path: str, status: int, *, times: int = 1, after: bool = False) -> None:
        """Answer so to the next requests; ``after``: what they ask for is done all the same."""
        fault = {"method": method, "path": path, "status": status, "times": times, "after": after}
        self.ask("POST", f"{_CONTROL}faults", fault)

    def forgive(self) -> None:
        """No faults any more."""
        self.ask("POST", f"{_CONTROL}forgive", {})

    def without_ray(self, missing: bool = True) -> None:
        """Whether KubeRay is not there."""
        self.ask("POST", f"{_CONTROL}ray", {"known": not missing})

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """All of a kind."""
        path = "/apis/ray.io/v1" if kind == "rayclusters" else "/api/v1"
        found: list[dict[str, Any]] = self.ask("GET", f"{path}/namespaces/default/{kind}")["items"]
        return found

    def left(self) -> list[str]:
        """Names of all that is there."""
        return [
            f"{kind}/{one['metadata']['name']}"
            for kind in ("rayclusters", "pods", "secrets", "services")
            for one in self.objects(kind)
        ]

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


class _Faults:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def of(self, method: str, path: str) -> dict[str, Any] | None:
        for one in self.asked:
            if one["times"] > 0 and one["method"] == method and re.search(one["path"], path):
                one["times"] -= 1
                return one
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.store, self.faults = KubeStore(), _Faults()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        value = json.loads(body) if body else None
        if self.path.startswith(_CONTROL):
            return self._send(200, self._control(self.path.removeprefix(_CONTROL), value))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(401, {"kind": "Status", "code": 401, "message": "Unauthorized"})
        fault = self.server.faults.of(self.command, self.path)
        if fault is not None and not fault["after"]:
            return self._fault(fault["status"])
        found = self._proxied(body) or self.server.store.answer(self.command, self.path, value)
        return self._fault(fault["status"]) if fault is not None else self._send(*found)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815  as http.server finds them

    def _control(self, what: str, value: Any) -> Any:
        if what == "faults":
            self.server.faults.asked.append(value)
        elif what == "forgive":
            self.server.faults.asked.clear()
        elif what == "ray":
            self.server.store.knows_ray = value["known"]
        return {}

    def _proxied(self, body: bytes) -> tuple[int, Any] | None:
        """To the address that a service's annotation names."""
        found = _PROXY.fullmatch(self.path)
        if found is None:
            return None
        service = self.server.store.objects.get(("services", "default", found["name"]))
        if service is None:
            return 404, {"message": f"services {found['name']!r} not found"}
        target = service["metadata"]["annotations"]["test/address"]
        headers = {"X-Ray-Authorization": self.headers.get("X-Ray-Authorization", ""),
                   "Content-Type": "application/json"}  # fmt: skip
        request = urllib.request.Request(f"{target}/{found['path']}", data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, {"message": error.read().decode()[:200]}

    def _fault(self, status: int) -> None:
        if status == 0:
            self.close_connection = True
            self.connection.shutdown(2)
            return
        reason = {403: 'User "u" cannot do this in the namespace "default"'}.get(status, "as told")
        self._send(status, {"kind": "Status", "code": status, "message": reason})

    def _send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(data)

    def handle_one_request(self) -> None:
        """A client that was killed reads no answer."""
        try:
            super().handle_one_request()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


def main() -> None:
    """Serve until stdin ends."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = _Server(port)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
