"""Prefect's own server, for runs on a machine where none is configured."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from importlib import import_module
from importlib.util import find_spec

from dray.cli.prefect_place import moved_database
from dray.cli.prefect_settings import setting
from dray.errors import ClusterError
from dray.imports import lasting_imports, own_program
from dray.ports import lasting_port
from dray.proxies import loopback_exceptions
from dray.storage.addresses import shows_secret, without_secret

_GO = b"\n"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback is no proxy's to reach
_ERROR = re.compile(r"[\w.]+(Error|Exception)\b.*")  # of a traceback, its last line
_ASK_TIMEOUT = 3.0  # seconds for a server that is said to be there
START_SECONDS = 120.0
"""For a server to start: the first one on a machine creates the database."""


class PrefectServer:
    """A Prefect server on a free loopback port, in a process of its own that ends with this one.

    Its database is Prefect's usual one, so runs stay visible in ``prefect server start`` later, or a local
    one where that will not do. ``settings`` are Prefect's, as variables of the environment, and go before
    those of this process.
    """

    def __init__(self, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.port = port or lasting_port()
        self.url = f"http://127.0.0.1:{self.port}/api"
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._serves = False
        self._moved: dict[str, str] = {}
        self.remark: str | None = None
        """Why its database is not Prefect's usual one; None where it is. Known once it was started."""

    @property
    def told(self) -> dict[str, str]:
        """Variables by which Prefect's clients, in this process and those that it starts, find the server."""
        home = {name: value for name, value in self._moved.items() if name == "PREFECT_HOME"}
        return {"PREFECT_API_URL": self.url, **loopback_exceptions(), **home}

    def warm_up(self) -> None:
        """Start a process that imports, and serves nothing until it is asked; again does nothing."""
        if self._process is not None:
            return
        self._moved, self.remark = moved_database(self._settings)
        given = {**os.environ, **self._settings, **_SERVER_ENVIRONMENT, **self._moved, **self.told}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open until it answers or ends
        self._process = subprocess.Popen(
            [*own_program("dray.cli.server", "serve"), str(self.port)],
            env=given,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the run, which still needs its server to end in order
        )

    def start(self) -> None:
        """Have it serve; returns at once."""
        self.warm_up()
        self._serves = True
        self._go()

    def _go(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died: ``wait`` says so
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
                with _DIRECT.open(f"{self.url}/health", timeout=2) as answer:
                    if answer.status == 200:
                        self._go()  # its log is of its start alone
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        said = self._last_words()
        self.stop()
        raise ClusterError(
            f"Prefect's server did not start{f' ({said})' if said else ''}; "
            "try `prefect server start` to see why, or set PREFECT_API_URL"
        )

    def _last_words(self) -> str | None:
        """The last error that it wrote, without what stands before it; else its last line.

        Of one that shows a login, as of a database, its class alone.
        """
        if self._process is None or self._log.closed:
            return None
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [found[0] for line in lines if (found := _ERROR.match(line))]
        said = (errors or lines or [""])[-1].strip()
        return (said.partition(":")[0] if shows_secret(said) else said)[:300] or None

    def stop(self) -> None:
        """End the process."""
        if self._process is None:
            return
        self._log.close()
        if self._process.poll() is not None:
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
    # Prefect's own: that of `dray run` (cli/warming.py) would leave out why the server did not start.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_CLASS": "prefect.logging.handlers.PrefectConsoleHandler",
}


def configured() -> bool:
    """Whether the environment, a file of the working folder or a profile says where Prefect's API is."""
    return configured_url() is not None


def configured_url() -> str | None:
    """Where Prefect's API is, by the sources that Prefect reads; None where none says."""
    return setting("PREFECT_API_URL", "api", "url") or None


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
        if asked.is_set():  # it answers: a log that no process reads would grow for as long as the run lasts
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            os.close(nowhere)
        asked.set()
    os.kill(os.getpid(), signal.SIGKILL)
