"""What the rows share: a store and a server that misbehave as they are told, and how a load is judged.

Whatever happens, nothing is published or served that is not the model. The rows are those of the list that
the weights' design began with; a server of S3's shape, or one that answers as a script says, misbehaves.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dray.errors import WeightsError
from dray.storage import ObjectStoreOptions
from dray.weights import LocalModel, Manifest, check_remote, read_manifest
from dray.weights.fetch.limits import FetchLimits
from dray.weights.loading.streamed import StreamedWeights
from dray.weights.source.manifest import ModelFile
from tests.support.s3_emulator import EmulatorProcess

ROOT = Path(__file__).parents[4]
URI = "s3://bucket/models/m"
FIRST, SECOND = "model-1.safetensors", "model-2.safetensors"
CHUNK = 256 << 10
WINDOW = FetchLimits().largest_window


Limiter = Callable[..., None]


def known(server: EmulatorProcess) -> Manifest:
    """The model as it is now, in small chunks."""
    found = read_manifest(URI, server.options)
    return found if found.files[0].digests else replace(found, chunk_bytes=CHUNK)


def arrives(manifest: Manifest, options: ObjectStoreOptions | None, original: Path) -> LocalModel:
    """The load comes to its end, and every byte is right."""
    with LocalModel(manifest, options) as model:
        folder = model.wait_whole()
        for file in manifest.files:
            assert (folder / file.name).read_bytes() == (original / file.name).read_bytes(), file.name
    return model


def is_refused(
    manifest: Manifest, options: ObjectStoreOptions | None, cache: Path, says: str, **more: Any
) -> str:
    """The load ends with one error, and nothing is published or served: not even to who began to load."""
    with LocalModel(manifest, options, **more) as model, pytest.raises(WeightsError, match=says) as raised:
        model.wait_whole()
    assert not (cache / manifest.key).exists()
    engine = cache / f"{manifest.key}.engine"
    if engine.is_dir():
        with pytest.raises(WeightsError, match=says):
            list(StreamedWeights.of(engine).tensors())
    return str(raised.value)


def asked(server: EmulatorProcess) -> int:
    """Requests for objects since it was told how to behave."""
    return int(server.ask("GET", "served")["object_requests"])


def shard(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file as somebody might send it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(dtype: str = "U8", shape: Any = (2,), offsets: Any = (0, 2)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A range that was asked for."""

    connection: socket.socket
    content: bytes
    start: int
    end: int

    @property
    def data(self) -> bytes:
        return self.content[self.start : self.end]

    def say(self, status: int, body: bytes = b"", **headers: object) -> None:
        """An answer with these headers; None leaves one out."""
        all_of = {
            "Content-Length": len(body),
            "Content-Range": f"bytes {self.start}-{self.end - 1}/{len(self.content)}",
            "ETag": '"1"',
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [f"HTTP/1.1 {status} Said"]
        lines += [f"{name}: {value}" for name, value in all_of.items() if value is not None]
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)


Answer = Callable[[Wanted], None]


"""Answers a request; raises ConnectionError to end the connection."""


def sound(wanted: Wanted) -> None:
    wanted.say(206, wanted.data)


class Web:
    """A web server: requests for weights are answered by ``script``, one by one, then by ``rest``."""

    def __init__(self, rest: Answer = sound, *script: Answer) -> None:
        data = np.random.default_rng(5).random((800, 1000), np.float32)
        text = json.dumps({"w": tensor("F32", data.shape, (0, data.nbytes))}).encode()
        self.files = {
            "config.json": b"{}",
            "model.safetensors": shard(text + b" " * (-len(text) % 8), data.tobytes()),
        }
        self.script = deque(script)
        self.rest = rest
        self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}/m"
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def manifest(self) -> Manifest:
        """What a listing would say."""
        files = (ModelFile(name=name, size=len(data), etag='"1"') for name, data in self.files.items())
        return Manifest(uri=self.uri, files=tuple(files), chunk_bytes=CHUNK)

    def stop(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while line := stream.readline():
                    self._answer(connection, line, stream)
            except OSError:
                return

    def _answer(self, connection: socket.socket, line: bytes, stream: Any) -> None:
        headers = {}
        while text := stream.readline().strip().decode():
            name, _, value = text.partition(": ")
            headers[name.lower()] = value
        name = line.decode().split(" ")[1].rpartition("/")[2]
        first, _, last = headers["range"].removeprefix("bytes=").partition("-")
        wanted = Wanted(connection=connection, content=self.files[name], start=int(first), end=int(last) + 1)
        if name == "config.json":
            sound(wanted)
            return
        self.requests += 1
        answer = self.script.popleft() if self.script else self.rest
        answer(wanted)


Webs = Callable[..., Web]


def comes_from(web: Web) -> LocalModel:
    """The load from it ends well, with the right bytes."""
    with LocalModel(web.manifest, None) as model:
        folder = model.wait_whole()
        assert all((folder / name).read_bytes() == data for name, data in web.files.items())
    return model


def refused_before_it_is_fetched(server: EmulatorProcess, cache: Path, says: str) -> None:
    """By the look at the store, with next to nothing read; and by a load that nobody looked ahead for."""
    manifest = known(server)
    with pytest.raises(WeightsError, match=says):
        check_remote(manifest, server.options)
    assert sum(server.served().values()) < 1e6
    is_refused(manifest, server.options, cache, says)
    assert not (cache / f"{manifest.key}.engine").exists()


def index_file(**places: str) -> bytes:
    return json.dumps({"weight_map": places}).encode()


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
