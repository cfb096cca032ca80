"""Prefect's own server, for runs on a machine where none is configured."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dray.errors import ClusterError
from dray.imports import lasting_imports
from dray.ports import lasting_port
from dray.storage.addresses import without_secret

_GO = b"\n"
_ASK_TIMEOUT = 3.0  # seconds for a server that is said to be there
START_SECONDS = 120.0
"""For a server to start: the first one on a machine creates the database."""


class PrefectServer:
    """A Prefect server on a free loopback port, in a process of its own that ends with this one.

    Its database is Prefect's usual one, so runs stay visible in ``prefect server start`` later. ``settings``
    are Prefect's, as variables of the environment, and go before those of this process.
    """

    def __init__(self, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.port = port or lasting_port()
        self.url = f"http://127.0.0.1:{self.port}/api"
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._serves = False

    def warm_up(self) -> None:
        """Start a process that imports, and serves nothing until it is asked; again does nothing."""
        if self._process is not None:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from dray.cli.server import serve; serve()", str(self.port)],
            env={**os.environ, **self._settings, **_SERVER_ENVIRONMENT, "PREFECT_API_URL": self.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run, which still needs its server to end in order
        )

    def start(self) -> None:
        """Have it serve; returns at once."""
        self.warm_up()
        assert self._process is not None
        assert self._process.stdin is not None
        self._serves = True
        with suppress(BrokenPipeError):  # it died at once: ``wait`` says so
            self._process.stdin.write(_GO)
            self._process.stdin.flush()

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """Its process; None where it was not started."""
        return self._process

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Wait until it answers.

        Raises:
            ClusterError: it ended, or did not answer in ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:  # noqa: S310  our own loopback URL
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        self.stop()
        raise ClusterError(
            "Prefect's server did not start; try `prefect server start` to see why, or set PREFECT_API_URL"
        )

    def stop(self) -> None:
        """End the process."""
        if self._process is None or self._process.poll() is not None:
            return
        if self._serves:
            self._process.terminate()
        else:
            self._process.kill()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


_SERVER_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "0",  # copying the UI's files costs seconds; `prefect server start` has it
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT__SERVER_EPHEMERAL": "1",  # as Prefect starts its own temporary servers: no schedulers
    "PREFECT__SERVER_FINAL": "1",
    # Prefect's own kinds of blocks: to look for new ones, it imports Ray and pandas. Standing servers do.
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "PREFECT_SERVER_API_MAX_PARAMETER_SIZE": "0",  # no limit: a shell makes a list of many files of a pattern
    "DO_NOT_TRACK": "1",
}


def configured() -> bool:
    """Whether the environment, a file of the working folder or a profile says where Prefect's API is."""
    return configured_url() is not None


def configured_url() -> str | None:
    """Where Prefect's API is, by the sources that Prefect reads, in its order; None where none says.

    Prefect itself would say it after a second of imports.
    """
    found = _told("PREFECT_API_URL", "api", "url")
    return (_of_profile() if found is None else found) or None


def _told(variable: str, *keys: str) -> str | None:
    """A setting of Prefect's by the environment, ``.env``, ``prefect.toml`` or ``pyproject.toml``."""
    if (found := os.environ.get(variable)) is not None:
        return found
    if (found := _dotenv(Path(".env")).get(variable)) is not None:
        return found
    for file, table in (("prefect.toml", ()), ("pyproject.toml", ("tool", "prefect"))):
        value: Any = _toml(Path(file))
        for key in (*table, *keys):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return str(value)
    return None


def _of_profile() -> str | None:
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    named = _told("PREFECT_PROFILES_PATH", "profiles_path")
    profiles = _toml(Path(named) if named else home / "profiles.toml")
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    found = profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL")
    return str(found) if found else None


def _dotenv(file: Path) -> Mapping[str, str | None]:
    if not file.is_file():
        return {}
    from dotenv import dotenv_values  # Prefect requires it

    try:
        return dotenv_values(file)
    except (OSError, UnicodeDecodeError):
        return {}  # Prefect says what is wrong with it


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}  # Prefect says what is wrong with it


ADVICE = "start that server, or unset PREFECT_API_URL (or that of a profile or file), and dray starts its own"


def silence_of(url: str) -> str | None:
    """Why nothing that may be Prefect's API answers at ``url``; None where something does.

    A refusal is an answer: this question carries no login, and trusts no certificate of one's own.
    """
    try:
        address = f"{without_secret(url).rstrip('/')}/health"
        with urllib.request.urlopen(address, timeout=_ASK_TIMEOUT):  # noqa: S310  the user's own URL
            return None
    except urllib.error.HTTPError as error:
        return None if error.code in (401, 403) else f"it answers with HTTP {error.code}"
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            return None
        return str(getattr(error.reason, "strerror", None) or error.reason)
    except (OSError, ValueError, HTTPException) as error:
        return str(getattr(error, "strerror", None) or type(error).__name__)


def has_flows() -> bool:
    """Whether the project's flows are here: a checkout has them, a wheel holds the library alone."""
    try:
        return find_spec("flows.batch_inference") is not None
    except ImportError:
        return False


def serve() -> None:
    """The server process itself. It ends at the latest with its parent: then its stdin does."""
    asked = threading.Event()
    threading.Thread(target=_heed_parent, args=(asked,), daemon=True).start()
    with lasting_imports():
        import uvicorn

        create_app = import_module("prefect.server.api.server").create_app
    asked.wait()
    uvicorn.run(create_app, factory=True, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")


def _heed_parent(asked: threading.Event) -> None:
    while os.read(0, 1):  # not by sys.stdin, whose lock a daemon thread must not hold when Python ends
        asked.set()
    os.kill(os.getpid(), signal.SIGKILL)
