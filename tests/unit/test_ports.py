"""Ports that are free."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dray import ports
from dray.ports import lasting_port

pytestmark = pytest.mark.unit


def test_a_listener_can_have_it() -> None:
    port = lasting_port()
    with socket.create_server(("127.0.0.1", port)) as listener:
        assert listener.getsockname()[1] == port


def test_a_listener_that_comes_later_finds_it_outside_of_what_connections_take() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1024 <= lasting_port() < first


def test_one_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_KEPT", range(port, port + 1))
        assert lasting_port() not in (0, port)
