"""Whether a head keeps strangers out, and the token of this user."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # comes with Ray
import pytest

from dray.cluster import auth
from dray.cluster.auth import answers_anybody, close_token_file
from dray.errors import ClusterError

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "http_proxy",
        "https_proxy",
        "grpc_proxy",
        "no_proxy",
        "NO_PROXY",
        "no_grpc_proxy",
        "RAY_USE_TLS",
    )
    for name in (*names, "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def _head(code: grpc.StatusCode | None) -> Iterator[str]:
    """A head that answers every call, or refuses it with ``code``."""

    def answer(_: bytes, context: Any) -> bytes:
        if code is not None:
            context.abort(code, "no")
        return b""

    class Calls(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def service(self, _: object) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Calls(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def _refusing_proxy() -> Iterator[str]:
    """A proxy that lets no connection through, as most do for ports other than 443."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(300)
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_an_open_head_is_seen_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own connections go past it: the cluster was joined, and its being open went unseen."""
    with _head(None) as address, _refusing_proxy() as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        assert answers_anybody(address)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
def test_a_head_that_wants_a_token_refuses(code: grpc.StatusCode) -> None:
    with _head(code) as address:
        assert not answers_anybody(address)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL])
def test_any_other_answer_is_no_proof_that_it_is_closed(code: grpc.StatusCode) -> None:
    with _head(code) as address, pytest.raises(ClusterError, match=rf"wants a token \({code.name}\)"):
        answers_anybody(address)


def test_silence_is_no_proof_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_SECONDS", 0.3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ClusterError, match="DEADLINE_EXCEEDED"):
            answers_anybody(address)
        monkeypatch.setenv("RAY_USE_TLS", "1")  # it hangs up on a connection without a certificate
        assert not answers_anybody(address)


@pytest.mark.parametrize("home", ["read-only", "none"])
def test_without_a_home_the_token_is_in_the_environment(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if home == "none":
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    else:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".ray").write_text("a folder cannot be made here")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")  # set back after the test
    close_token_file()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_a_home_that_can_be_written_to_has_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    close_token_file()
    assert "RAY_AUTH_TOKEN" not in os.environ
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
