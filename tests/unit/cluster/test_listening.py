"""Whether anything listens where the head of a cluster is to be."""

from __future__ import annotations

import socket
import time

import pytest

from dray.cluster import listening
from dray.cluster.listening import listens, refuse_silent
from dray.errors import ConfigError

pytestmark = pytest.mark.unit


def test_a_head_that_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert listens(address)
        refuse_silent(address)


def test_a_head_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_START_SECONDS", 0.0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert not listens(address)
        with pytest.raises(ConfigError, match=f"--cluster {address}: nothing listens there; is the head up"):
            refuse_silent(address)


def test_one_that_is_starting_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        monkeypatch.setattr(time, "sleep", lambda _: server.listen())
        server.bind(("127.0.0.1", 0))
        refuse_silent(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("address", ["auto", "192.0.2.7:6379", "no-such-host.invalid:6379"])
def test_what_is_not_certain_is_left_to_the_joining(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unanswered(*_: object, **__: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", unanswered)
    refuse_silent(address)
