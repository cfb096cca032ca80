"""Each engine's sockets have a folder of their own, which goes with it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.engine.vllm_adapter.core.socket_folder import SocketFolder

pytestmark = pytest.mark.unit

VARIABLE = "VLLM_RPC_BASE_PATH"
LONGEST_PATH = 107  # bytes of a socket's path: sockaddr_un has 108, with a closing zero
NAME = 36  # of a socket: a UUID


@pytest.fixture(autouse=True)
def tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with a short name."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_it_is_there_for_as_long_as_the_engine() -> None:
    sockets = SocketFolder()
    folder = Path(os.environ[VARIABLE])
    assert folder.is_dir()
    (folder / "left-by-vllm").touch()
    sockets.remove()
    sockets.remove()
    assert not folder.exists()
    assert VARIABLE not in os.environ


def test_the_users_own_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    SocketFolder().remove()
    assert os.environ[VARIABLE] == str(tmp_path)
    assert tmp_path.exists()


@pytest.mark.parametrize("spare", [-1, 0])
def test_no_path_is_longer_than_a_sockets_may_be(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    rest = len("/dray-zmq-12345678/") + NAME + spare
    long = tmp / ("x" * (LONGEST_PATH - rest - len(f"{tmp}/")))
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    sockets = SocketFolder()
    fits = spare == 0
    assert (VARIABLE in os.environ) is fits
    assert len(list(long.iterdir())) == fits
    sockets.remove()
    assert not list(long.iterdir())
