"""Which processes begin to import with a command, and that unused ones end with it."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from dray.cli.server import PrefectServer
from dray.cli.warming import warm_server, warm_up_for

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


_others: set[int] = set()
"""Processes of other tests, a Prefect server among them, that live longer than one test."""


@pytest.fixture(autouse=True)
def _among_others() -> None:
    _others.clear()
    _others.update(process.pid for process in psutil.Process().children())


def _command(process: psutil.Process) -> list[str]:
    """A process that has just begun has no command line for a moment, in which its parent already goes on."""
    end = time.monotonic() + 5
    while not (words := list(process.cmdline())) and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, f"process {process.pid} has no command"
        time.sleep(0.01)
    return words


def _began() -> list[str]:
    ours = [process for process in psutil.Process().children() if process.pid not in _others]
    commands = [" ".join(_command(process)) for process in ours]
    return sorted(name for name in ("cli.server", "cluster.head") if any(name in one for one in commands))


@pytest.mark.parametrize(
    ("arguments", "begin"),
    [
        (["run", "in.jsonl"], ["cli.server", "cluster.head"]),
        (["resume", "job"], ["cli.server", "cluster.head"]),
        (["run", "in.jsonl", "--cluster", "10.0.0.1:6379"], ["cli.server"]),
        (["run", "in.jsonl", "--cluster=auto"], ["cli.server"]),
        (["run", "--help"], []),
        (["status"], []),
        ([], []),
    ],
)
def test_what_a_command_may_need_begins_with_it(arguments: list[str], begin: list[str]) -> None:
    with warm_up_for(arguments):
        assert _began() == begin
    assert _began() == []


def test_a_server_that_is_configured_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    with warm_up_for(["run", "in.jsonl"]):
        assert _began() == ["cluster.head"]


def test_a_command_that_fails_leaves_nothing() -> None:
    with pytest.raises(KeyboardInterrupt), warm_up_for(["run"]):
        raise KeyboardInterrupt
    assert _began() == []


def test_the_run_takes_the_server(tmp_path: Path) -> None:
    with warm_up_for(["run", "--cluster=auto"]):
        server = warm_server()
        assert isinstance(server, PrefectServer)
        assert warm_server() is None
    assert _began() == ["cli.server"]  # its own to stop
    server.stop()
    assert _began() == []
    assert list(tmp_path.iterdir()) == []  # it has served nothing
