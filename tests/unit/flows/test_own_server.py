"""Dray's server in the place of Prefect's temporary one: when it starts, and when it is left alone."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from dray.errors import ClusterError
from flows import own_server
from flows.batch_inference import batch_inference
from flows.own_server import TemporaryServer
from flows.plan import plan

pytestmark = pytest.mark.unit


class _Process:
    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class _Started:
    """A server that answers at once, or whose start is interrupted."""

    all: list[_Started]
    error: BaseException | None

    def __init__(self, port: int | None, settings: dict[str, str]) -> None:
        self.port = port or 4000 + len(self.all)
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.settings, self.process, self.waited = settings, _Process(), 0.0
        self.remark: str | None = None
        self.all.append(self)

    def start(self) -> None:
        assert self.process.code is None

    def wait(self, seconds: float) -> None:
        self.waited = seconds
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self.process.code = -15


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[_Started]:
    monkeypatch.setattr(_Started, "all", [], raising=False)
    monkeypatch.setattr(_Started, "error", None, raising=False)
    monkeypatch.setattr(own_server, "PrefectServer", _Started)
    return _Started.all


def test_it_starts_once_and_waits_longer_than_prefect(started: list[_Started]) -> None:
    server: Any = TemporaryServer()
    server.start()
    server.start()
    [one] = started
    assert (server.api_url, server.server_process) == (one.url, one.process)
    assert one.waited == 120
    assert one.settings["PREFECT_HOME"] == os.environ["PREFECT_HOME"]
    server.stop()
    assert one.process.code == -15


def test_one_that_died_starts_again_at_its_address(started: list[_Started]) -> None:
    server: Any = TemporaryServer()
    server.start()
    started[0].process.code = -2
    server.start(timeout=200)
    assert [one.port for one in started] == [4000, 4000]
    assert started[1].waited == 200
    assert server.server_process is started[1].process


def test_a_fork_uses_that_of_its_parent(started: list[_Started], monkeypatch: pytest.MonkeyPatch) -> None:
    """There, each child of the parent looks dead."""
    server = TemporaryServer()
    server.start()
    started[0].process.code = 0
    monkeypatch.setattr(os, "getpid", lambda: 1)
    server.start()
    assert len(started) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ClusterError("its port was taken")])
def test_a_start_that_failed_is_forgotten(started: list[_Started], error: BaseException) -> None:
    server = TemporaryServer()
    _Started.error = error
    with pytest.raises(type(error)):
        server.start()
    assert started[0].process.code == -15
    _Started.error = None
    server.start()
    assert server.api_url == started[1].url != started[0].url


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[int | None, Any]:
    """The temporary servers that Prefect knows of, without the seconds of importing where it keeps them."""
    servers: dict[int | None, Any] = {}
    module = SimpleNamespace(SubprocessASGIServer=SimpleNamespace(_instances=servers))
    monkeypatch.setitem(sys.modules, "prefect.server.api.server", module)
    return servers


def test_a_call_of_a_flow_puts_it_where_prefect_looks(known: dict[int | None, Any]) -> None:
    for flow in (batch_inference, plan, batch_inference.with_options(timeout_seconds=5)):
        known.clear()
        with pytest.raises(Exception, match="missing a required argument"):
            flow()  # type: ignore[call-overload]  # no parameters: before Prefect's client is asked
        assert isinstance(known[None], TemporaryServer)
    first = known[None]
    own_server._stand_in()
    assert known[None] is first


def test_a_configured_server_is_left_alone(known: dict[int | None, Any]) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:4200/api"}):
        own_server._stand_in()
    assert known == {}


def test_one_that_runs_for_the_callers_flow_is_used_until_it_dies(
    known: dict[int | None, Any], started: list[_Started]
) -> None:
    prefects = known[None] = SimpleNamespace(port=8123, server_process=_Process())
    own_server._stand_in()
    server = known[None]
    server.start()
    assert (server.server_process, started) == (prefects.server_process, [])
    prefects.server_process.code = -2
    server.start()
    assert server.api_url == "http://127.0.0.1:8123/api"
    assert len(started) == 1
