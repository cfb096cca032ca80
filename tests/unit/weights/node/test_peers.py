"""What nodes send each other: whole chunks, however slowly they are read."""

from __future__ import annotations

import random
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from blake3 import blake3

from dray.weights.fetch.chunks import ChunkPlan
from dray.weights.node import peers
from dray.weights.node.cache import ModelPaths
from dray.weights.node.peers import DIGEST_HEADER, PeerServer, PeerView
from dray.weights.node.places import CacheRoot
from dray.weights.node.ready import ChunkMap
from dray.weights.source.manifest import CHUNK_BYTES, Manifest, ModelFile

pytestmark = pytest.mark.unit

NAME = "model.safetensors"


@pytest.fixture
def content(rng: random.Random) -> bytes:
    """Two chunks as they usually are, and a little more."""
    return rng.randbytes(2 * CHUNK_BYTES + 1000)


@pytest.fixture
def model(content: bytes, tmp_path: Path) -> Iterator[Any]:
    """What a server asks of a model that is whole."""
    manifest = Manifest(uri="s3://b/m", files=(ModelFile(name=NAME, size=len(content), etag="e"),))
    plan, paths = (
        ChunkPlan(manifest),
        ModelPaths(place=CacheRoot(root=tmp_path, memory=False), key=manifest.key),
    )
    paths.whole.mkdir()
    (paths.whole / NAME).write_bytes(content)
    ready = ChunkMap.made(paths.whole / "map", len(plan.chunks))
    ready.begin()
    for chunk in plan.chunks:
        ready.mark(chunk.number, blake3(content[chunk.start : chunk.end]).digest())
    yield SimpleNamespace(manifest=manifest, plan=plan, paths=paths, ready=ready)
    ready.close()


@pytest.fixture
def server(model: Any) -> Iterator[PeerServer]:
    started = PeerServer("node", "127.0.0.1", lambda key: model if key == model.manifest.key else None)
    yield started
    started.stop()


def _asked(server: PeerServer, key: str, start: int, end: int) -> socket.socket:
    """A connection on which these bytes were asked for, with room for few of them."""
    place = urlsplit(server.peer.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    connection.settimeout(20)
    connection.connect((place.hostname, place.port))
    lines = [f"GET /{key}/{NAME} HTTP/1.1", f"Range: bytes={start}-{end - 1}"]
    lines += [f"Authorization: Bearer {server.peer.token}", "", ""]
    connection.sendall("\r\n".join(lines).encode())
    return connection


def test_a_chunk_reaches_a_slow_reader_whole(server: PeerServer, model: Any, content: bytes) -> None:
    """The buffers of the two sockets are full long before a chunk of 8 MiB is sent."""
    for chunk in model.plan.chunks:
        with _asked(server, model.manifest.key, chunk.start, chunk.end) as connection:
            answer = HTTPResponse(connection)
            answer.begin()
            time.sleep(0.2)
            found = bytearray()
            while piece := answer.read(1 << 20):
                found += piece
                time.sleep(0.01)
        assert bytes(found) == content[chunk.start : chunk.end]
        assert answer.status == 206
        assert answer.headers[DIGEST_HEADER] == blake3(found).hexdigest()


def test_connections_without_a_token_are_few_and_do_not_stay(
    model: Any, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reaches the port holds no thread for long, and keeps no peer out."""
    monkeypatch.setattr(peers, "STRANGER_SECONDS", 1.0)
    monkeypatch.setattr(peers, "MAX_STRANGERS", 8)
    server = PeerServer("node", "127.0.0.1", lambda key: model if key == model.manifest.key else None)
    place = urlsplit(server.peer.url)
    address = (place.hostname or "", place.port or 0)
    known = _asked(server, model.manifest.key, 0, CHUNK_BYTES)
    assert _read(known) == content[:CHUNK_BYTES]
    before = threading.active_count()
    strangers = [socket.create_connection(address) for _ in range(2 * peers.MAX_STRANGERS)]
    for one in strangers[: peers.MAX_STRANGERS]:
        one.sendall(b"GET /")  # and nothing more: a request that never ends
    assert threading.active_count() - before <= 2 * peers.MAX_STRANGERS  # its thread and its clock
    _until(lambda: all(_is_closed(one) for one in strangers))
    with _asked(server, model.manifest.key, 0, CHUNK_BYTES) as again:
        assert _read(again) == content[:CHUNK_BYTES]
    for one in (known, *strangers):
        one.close()
    server.stop()


def _read(connection: socket.socket) -> bytes:
    answer = HTTPResponse(connection)
    answer.begin()
    return answer.read()


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_file_that_became_shorter_ends_the_connection(server: PeerServer, model: Any) -> None:
    with (model.paths.whole / NAME).open("r+b") as file:
        file.truncate(1000)
    with _asked(server, model.manifest.key, 0, CHUNK_BYTES) as connection:
        answer = HTTPResponse(connection)
        answer.begin()
        assert len(answer.fp.read()) == 1000


def test_nodes_with_addresses_of_version_6_serve_each_other(model: Any, content: bytes) -> None:
    model.marks = lambda: b"\1\1\1"
    server = PeerServer("node", "::1", lambda key: model)
    view = PeerView(model.manifest.key, "me", lambda: {"node": server.peer})
    address = view.address("node", NAME)
    headers = {**address.headers, "Range": f"bytes=0-{CHUNK_BYTES - 1}"}
    with urllib.request.urlopen(urllib.request.Request(address.url, headers=headers)) as answer:
        assert answer.read() == content[:CHUNK_BYTES]
    _until(lambda: view.look() == {"node": b"\1\1\1"})
    view.close()
    server.stop()


def test_a_file_with_an_odd_name_is_given_to_others(server: PeerServer, model: Any, content: bytes) -> None:
    name = "tök enizer#1?.json"
    (model.paths.whole / NAME).rename(model.paths.whole / name)
    model.manifest = replace(model.manifest, files=(replace(model.manifest.files[0], name=name),))
    view = PeerView(model.manifest.key, "me", lambda: {"node": server.peer})
    address = view.address("node", name)
    headers = {**address.headers, "Range": f"bytes=0-{CHUNK_BYTES - 1}"}
    with urllib.request.urlopen(urllib.request.Request(address.url, headers=headers)) as answer:
        assert answer.read() == content[:CHUNK_BYTES]
    view.close()
