"""A real Prefect server with its own home, its worker, and the requests that its UI makes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dray.ports import lasting_port
from tests.support.prefect_database import put_database

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
ANSWER_SECONDS = 90.0  # Prefect's server on SQLite waits 60 s for a lock of its own, and all calls with it
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class PrefectServer:
    """``prefect server start`` on a free loopback port, with a database of its own."""

    def __init__(self, home: Path, *, ui: bool = False, settings: Mapping[str, str] = NO_SETTINGS) -> None:
        put_database(home)
        self.home = home
        self.port = lasting_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {**_environment(home, self.url, ui=ui), **settings}
        self._server: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> PrefectServer:
        try:
            self.come_back()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def come_back(self) -> None:
        """Start the server, on the database that is there; returns when it answers."""
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        server = self._server = self.start("server", "server", "start", *address)
        self._processes.insert(0, self._processes.pop())  # close() ends it last: workers wait 20 s for it
        _wait(lambda: self._healthy(server), START_SECONDS, "Prefect's server answers")

    def go_away(self) -> None:
        """Stop the server; what was started with it goes on."""
        assert self._server is not None
        stop(self._server)
        self._processes.remove(self._server)
        self._server = None

    @contextmanager
    def away(self) -> Iterator[None]:
        """No server answers meanwhile; it is back for the next test, too, when this one fails."""
        self.go_away()
        try:
            yield
        finally:
            self.come_back()

    def close(self) -> None:
        """End what was started, the last first."""
        for process in reversed(self._processes):
            stop(process)
        self._processes.clear()

    def start(self, log: str, *arguments: str, cwd: Path = ROOT) -> subprocess.Popen[bytes]:
        """Start ``prefect ARGUMENTS`` in a process group of its own; it ends with the server."""
        with (self.home / f"{log}.log").open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "prefect", *arguments],
                env={**self.environment, "PWD": str(cwd)},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def cli(self, *arguments: str, cwd: Path = ROOT) -> str:
        """Run ``prefect ARGUMENTS`` to its end, and give its output."""
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            env={**self.environment, "PWD": str(cwd)},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self, name: str) -> str:
        """What a started process wrote."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def get(self, path: str) -> Any:
        """GET, as the UI does."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | list[Any] | None = None) -> Any:
        """POST, as the UI does."""
        return self._call("POST", path, body or {})

    def patch(self, path: str, body: dict[str, Any]) -> None:
        """PATCH, as the UI does."""
        self._call("PATCH", path, body)

    def delete(self, path: str) -> None:
        """DELETE, as the UI does."""
        self._call("DELETE", path, None)

    def pages(self, path: str, body: dict[str, Any]) -> list[Any]:
        """All items of a filter, 200 a page."""
        found: list[Any] = []
        while True:
            page = self.post(path, {**body, "limit": 200, "offset": len(found)})
            found += page
            if len(page) < 200:
                return found

    def wait_for(self, run_id: str, seconds: float) -> dict[str, Any]:
        """The flow run, once it has ended."""
        run: dict[str, Any] = {}

        def ended() -> bool:
            nonlocal run
            run = self.get(f"/flow_runs/{run_id}")
            return run["state_type"] in FINAL

        _wait(ended, seconds, f"flow run {run_id} ends")
        return run

    def _call(self, method: str, path: str, body: dict[str, Any] | list[Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}/api{path}", data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            text = _answer(request)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()[:2000]}") from None
        return json.loads(text) if text else None

    def _healthy(self, server: subprocess.Popen[bytes]) -> bool:
        assert server.poll() is None, f"Prefect's server ended: {self.log('server')[-2000:]}"
        try:
            with urllib.request.urlopen(f"{self.url}/api/health", timeout=2):
                return True
        except OSError:
            return False


def _answer(request: urllib.request.Request, tries: int = 10) -> bytes:
    """The body of the answer; Prefect on SQLite says 503 while its database is locked, as the UI knows."""
    for left in reversed(range(tries)):
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError as error:
            if error.code != 503 or not left:
                raise
            time.sleep(1)
    raise AssertionError("not reached")


@contextmanager
def prefect_server(*, ui: bool = False, settings: Mapping[str, str] = NO_SETTINGS) -> Iterator[PrefectServer]:
    """A server with a home that goes with it, and variables of Prefect's of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="dray-prefect-", ignore_cleanup_errors=True) as home,
        PrefectServer(Path(home), ui=ui, settings=settings) as server,
    ):
        yield server


def stop(process: subprocess.Popen[bytes], *, seconds: float = 20.0) -> None:
    """End a process that ``start`` made, with its group when it does not go by itself."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its own group: nothing but its children
    process.wait()


def _environment(home: Path, url: str, *, ui: bool) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "RAY_"))}
    return inherited | {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"{url}/api",
        "PREFECT_UI_ENABLED": str(ui).lower(),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_LOGGING_COLORS": "false",
        "DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _wait(ready: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s until {what}")
        time.sleep(0.2)
