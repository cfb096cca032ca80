"""Prefect's temporary server, in a process that has been told of none, as dray runs it.

Prefect starts one by itself, among the processes that Ctrl-C in a terminal and Jupyter's interrupt signal: it
dies, the job's end finds no server, and Prefect neither notices nor starts another. It waits 20 s for it.
"""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import threading
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Flow
from prefect.exceptions import PrefectHTTPStatusError
from prefect.logging import get_logger
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
)

from dray.cli.server import START_SECONDS, PrefectServer
from dray.errors import ConfigError
from dray.proxies import loopback_exceptions

P = ParamSpec("P")
R = TypeVar("R")

# Of prefect/_internal/schemas/validators.py. Servers that dray starts have no such limit.
_OVER_SIZE = re.compile(r"parameters must be less than ([\d,]+) bytes when serialized \(got ([\d,]+) bytes")
_TOO_LONG = (
    "Prefect's server takes at most {} bytes of parameters for a run, and these are {}: name the input's "
    "files by a pattern in quotes ('data/*.jsonl') instead of a list, have long texts in the rows, or start "
    "that server with PREFECT_SERVER_API_MAX_PARAMETER_SIZE=0"
)

_guard = threading.Lock()


def with_own_server(flow: Flow[P, R]) -> Flow[P, R]:
    """Have calls of ``flow`` use dray's own server where Prefect would start its temporary one."""
    flow.__class__ = _FlowWithOwnServer
    return flow


class _FlowWithOwnServer(Flow[P, R]):
    def __call__(self, *values: Any, **options: Any) -> Any:
        _stand_in()
        try:
            return super().__call__(*values, **options)
        except PrefectHTTPStatusError as error:
            if (size := _OVER_SIZE.search(str(error))) is None:
                raise
        # Out of the handler: Prefect's error holds all parameters, twice.
        raise ConfigError(_TOO_LONG.format(*size.groups()))

    def with_options(self, **options: Any) -> Flow[P, R]:
        return with_own_server(super().with_options(**options))


def _stand_in() -> None:
    """Give Prefect's clients in this process dray's server for Prefect's temporary one.

    One that runs already, for the caller's own flow, goes on; if it dies, dray's takes its place.
    """
    if PREFECT_API_URL.value() or not PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value():
        return
    from prefect.server.api.server import SubprocessASGIServer  # seconds, which Prefect would take next

    known = cast("dict[int | None, Any]", SubprocessASGIServer._instances)
    with _guard:
        before = known.get(None)
        if not isinstance(before, TemporaryServer):
            known[None] = TemporaryServer(before)


class TemporaryServer:
    """What Prefect's clients start and ask for its address: they take it for a ``SubprocessASGIServer``.

    A server that died is started again, at its port: clients of this process keep its address.
    """

    def __init__(self, before: Any = None) -> None:
        self.server_process: subprocess.Popen[Any] | None = before and before.server_process
        self._port: int | None = before and before.port
        self._server: PrefectServer | None = None
        self._pid = os.getpid()
        self._starting = threading.Lock()

    @property
    def api_url(self) -> str:
        """Where Prefect's API is."""
        return f"http://127.0.0.1:{self._port}/api"

    def start(self, timeout: int | None = None) -> None:
        """Start it, and wait until it answers; one that lives is left alone.

        Raises:
            ClusterError: it did not start.
        """
        with self._starting:
            if os.getpid() != self._pid:  # a fork, which uses its parent's
                return
            if self.server_process is not None and self.server_process.poll() is None:
                return
            self._start(timeout or PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value())

    def stop(self) -> None:
        """End it."""
        if self._server is not None:
            self._server.stop()

    def _start(self, seconds: float) -> None:
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        server = PrefectServer(self._port, settings)
        get_logger().info(
            "starting a Prefect server at %s for this process; PREFECT_API_URL would name one that stays",
            server.url,
        )
        self._port = None  # in case it has been taken
        try:
            server.start()
            if server.remark is not None:
                get_logger().info("%s", server.remark)
            os.environ.update(loopback_exceptions())  # for this process's clients, and Ray's workers
            server.wait(max(START_SECONDS, seconds))
        except BaseException:
            server.stop()
            raise
        self._port, self._server, self.server_process = server.port, server, server.process
        atexit.unregister(self.stop)
        atexit.register(self.stop)
