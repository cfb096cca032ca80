"""What a loader must survive, row by row: it recovers, or says in one error which file, tensor or range.

Whatever happens, nothing is published or served that is not the model. The rows are those of the list that
the weights' design began with; a server of S3's shape, or one that answers as a script says, misbehaves.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors import deserialize
from safetensors.numpy import save_file

from dray.errors import ConfigError, WeightsError
from dray.requests import ObjectStoreOptions
from dray.weights import LocalModel, Manifest, check_checkpoint, check_remote, read_manifest, transfer
from dray.weights.cache import READY
from dray.weights.checkpoint import INDEX
from dray.weights.chunks import ChunkPlan
from dray.weights.loading.streamed import StreamedWeights
from dray.weights.manifest import PUBLISHED, ModelFile
from dray.weights.origin import Address
from dray.weights.places import CACHE_VARIABLE
from dray.weights.publish import publish
from dray.weights.ready import ReadyMap
from dray.weights.schedule import Limits
from tests.support.checkpoints import Stored, odd, write_file
from tests.support.s3_emulator import EmulatorProcess

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
URI = "s3://bucket/models/m"
FIRST, SECOND = "model-1.safetensors", "model-2.safetensors"
CHUNK = 256 << 10
WINDOW = Limits().largest_window


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    root = tmp_path_factory.mktemp("origin")
    (root / "bucket/models").mkdir(parents=True)
    server = EmulatorProcess(root)
    yield server
    server.stop()


@pytest.fixture
def server(running: EmulatorProcess) -> EmulatorProcess:
    running.behave()
    return running


@pytest.fixture
def origin(running: EmulatorProcess) -> Iterator[Path]:
    """A model of two shards, 6 MB, and a file without bytes."""
    folder = running.root / "bucket/models/m"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "merges.txt").write_text("")
    numbers = np.random.default_rng(7)
    save_file({"embed": numbers.random((500, 1000), np.float32)}, folder / FIRST)
    save_file({"head": numbers.random((1000, 1000), np.float32)}, folder / SECOND)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"embed": FIRST, "head": SECOND}}))
    yield folder
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
    folder.rmdir()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


Limiter = Callable[..., None]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Limiter:
    """Give up sooner than in life."""

    def limit(**limits: Any) -> None:
        monkeypatch.setattr(transfer, "Limits", lambda: Limits(**limits))

    return limit


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


# -- a server that answers as it is told ------------------------------------------------------


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


@pytest.fixture
def web() -> Iterator[Webs]:
    started = []

    def start(rest: Answer = sound, *script: Answer) -> Web:
        started.append(Web(rest, *script))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def comes_from(web: Web) -> LocalModel:
    """The load from it ends well, with the right bytes."""
    with LocalModel(web.manifest, None) as model:
        folder = model.wait_whole()
        assert all((folder / name).read_bytes() == data for name, data in web.files.items())
    return model


# -- 1 to 5: the files themselves -------------------------------------------------------------


def _refused_before_it_is_fetched(server: EmulatorProcess, cache: Path, says: str) -> None:
    """By the look at the store, with next to nothing read; and by a load that nobody looked ahead for."""
    manifest = known(server)
    with pytest.raises(WeightsError, match=says):
        check_remote(manifest, server.options)
    assert sum(server.served().values()) < 1e6
    is_refused(manifest, server.options, cache, says)
    assert not (cache / f"{manifest.key}.engine").exists()


@pytest.mark.parametrize(
    ("cut", "says"),
    [
        (lambda data: data[:-1], r"model-2\.safetensors: truncated: tensors take 4,000,000 bytes"),
        (lambda data: data[: len(data) // 2], r"model-2\.safetensors: truncated"),
        (lambda data: data[:40], r"model-2\.safetensors: truncated: a header of 72 bytes in a file of 40"),
        (lambda data: data[:5], r"model-2\.safetensors: 5 bytes are too few"),
        (lambda data: b"", r"model-2\.safetensors: 0 bytes are too few"),
        (lambda data: data + b"\0", r"model-2\.safetensors: longer than its header says"),
    ],
    ids=["a byte", "half", "in the header", "in the length", "all", "one too many"],
)
def test_row_01_a_truncated_file(
    cut: Callable[[bytes], bytes], says: str, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / SECOND).write_bytes(cut((origin / SECOND).read_bytes()))
    _refused_before_it_is_fetched(server, cache, says)


def _sparse(path: Path, start: bytes, size: int) -> None:
    path.write_bytes(start)
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (shard(b""), "its header is not valid"),
        (shard(b"{}", length=2**63), "not a safetensors file, or damaged: its header would have"),
        (shard(b"{}", length=1000), "truncated: a header of 1,000 bytes in a file of 10"),
        (shard(b"\xff\xfe{}"), "its header is not valid"),
        (shard(b"{'a': 1}"), "its header is not valid"),
        (shard(b"[]"), "its header is not a JSON object"),
        (shard(b"[" * 100_000), "nested too deeply|not valid"),
        (shard(b'{"head":1,"head":1}'), "'head' stands in it twice"),
        (shard({"head": tensor("F7")}, b"00"), "tensor 'head': unknown dtype 'F7'"),
        (shard({"head": tensor(shape=[2.0])}, b"00"), "tensor 'head': shape and data_offsets are not"),
    ],
    ids=[
        "empty",
        "2^63",
        "beyond the file",
        "no text",
        "no JSON",
        "a list",
        "deep",
        "twice",
        "dtype",
        "shape",
    ],
)
def test_row_02_a_damaged_header(
    content: bytes, says: str, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / SECOND).write_bytes(content)
    _refused_before_it_is_fetched(
        server, cache, rf"model-2\.safetensors: ({says})|model-2\.safetensors: .*{says}"
    )


def test_row_02_a_header_of_more_than_100_mb_is_not_even_read(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    _sparse(origin / SECOND, shard(b"{", length=100_000_001), 200_000_000)
    with pytest.raises(WeightsError, match=r"model-2\.safetensors: .* header would have 100,000,001 bytes"):
        check_remote(known(server), server.options)
    assert sum(server.served().values()) < 1e6


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        ({"head": tensor(), "b": tensor()}, b"00", "starts at 0, which overlaps the one before"),
        ({"head": tensor(offsets=[1, 3])}, b"000", "starts at 1, which leaves a gap before it"),
        ({"head": tensor(offsets=[-2, 0])}, b"00", "-2 is no 64-bit count"),
        ({"head": tensor(offsets=[2, 0])}, b"00", "ends at 0, before its start at 2"),
        ({"head": tensor(shape=[2**63, 4, 0], offsets=[0, 0])}, b"", "overflows"),
        ({"head": tensor(shape=[2**64])}, b"00", "is no 64-bit count"),
        ({"head": tensor(shape=[3])}, b"00", r"2 bytes of data for U8 \[3\]"),
        ({"head": tensor("F4", [3])}, b"00", "does not end on a byte"),
    ],
    ids=["overlap", "gap", "negative", "backwards", "overflow", "no count", "span", "half a byte"],
)
def test_row_03_offsets_that_cannot_be(
    header: dict[str, Any], data: bytes, says: str, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / SECOND).write_bytes(shard(header, data))
    _refused_before_it_is_fetched(server, cache, rf"model-2\.safetensors: .*{says}")


def test_row_04_tensors_that_are_not_aligned_are_copied_and_counted(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    torch = pytest.importorskip("torch")
    data = np.random.default_rng(3).random(1000).astype(np.float32).tobytes()
    tensors = {"four": Stored("U8", (4,), b"abcd"), "head": Stored("F32", (1000,), data)}
    write_file(origin / SECOND, tensors, aligned=False)
    (origin / INDEX).write_text(json.dumps({"weight_map": {"embed": FIRST, "head": SECOND, "four": SECOND}}))
    manifest = known(server)
    check_remote(manifest, server.options)
    with LocalModel(manifest, server.options) as model:
        weights = StreamedWeights.of(model.wait_engine())
        found = dict(weights.tensors())
    assert found["head"].numpy().tobytes() == data
    assert found["head"].data_ptr() % 4 == 0
    assert found["four"].numpy().tobytes() == b"abcd"
    assert found["embed"].dtype is torch.float32
    assert (weights.stats.copied, weights.stats.tensors) == (1, 3)


def _index(**places: str) -> bytes:
    return json.dumps({"weight_map": places}).encode()


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (_index(embed=FIRST, head="m-3.safetensors"), r"m-3\.safetensors(: missing|, which is missing)"),
        (_index(embed=FIRST, head=FIRST), "tensor 'head' is not in model-1.safetensors"),
        (_index(embed=SECOND, head=FIRST), "tensor 'embed' is not in model-2.safetensors"),
        (_index(embed=FIRST, head=SECOND, more=SECOND), "tensor 'more' is not in model-2.safetensors"),
        (_index(embed=FIRST, head=SECOND, more=FIRST), "tensor 'more' is not in model-1.safetensors"),
    ],
    ids=["missing shard", "wrong shard", "exchanged", "one too many", "one too many in the other"],
)  # fmt: skip
def test_row_05_an_index_that_is_not_true(
    index: bytes, says: str, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / INDEX).write_bytes(index)
    _refused_before_it_is_fetched(server, cache, says)


@pytest.mark.parametrize("index", [b"", b"{}", b"[]", b"\xff", b'{"weight_map": ["a"]}', b"[" * 100_000])
def test_row_05_an_index_that_is_none(index: bytes, server: EmulatorProcess, origin: Path) -> None:
    (origin / INDEX).write_bytes(index)
    with pytest.raises(WeightsError, match=r"model\.safetensors\.index\.json: "):
        read_manifest(URI, server.options)


def test_row_05_files_that_the_index_does_not_name_are_not_read(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / "consolidated.safetensors").write_bytes(b"a second copy, and a broken one")
    manifest = known(server)
    check_remote(manifest, server.options)
    model = arrives(manifest, server.options, origin)
    assert not (model.shelf.whole / "consolidated.safetensors").exists()
    assert not any(name.endswith("consolidated.safetensors") for name in server.served())


# -- 6: parameters ----------------------------------------------------------------------------


class UnquantizedLinearMethod:
    """Named as vLLM's: weights that it made are not initialised."""


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        ("down.weight", r"lacks weights, or parts of them, for down\.weight;"),
        ("k.weight", r"lacks weights, or parts of them, for qkv\.weight;"),
        ("norm.weight", r"lacks weights, or parts of them, for norm\.weight;"),
        (None, ""),
    ],
    ids=["a weight", "a part of a fused one", "a norm", "nothing"],
)
def test_row_06_a_parameter_that_is_never_loaded(
    lacking: str | None, says: str, server: EmulatorProcess, origin: Path
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    from dray.weights.loading import vllm_loader

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rows: int, *, linear: bool = True) -> None:
            super().__init__()
            shape = (rows, 16) if linear else (rows,)
            self.weight = torch.nn.Parameter(torch.empty(shape), requires_grad=False)
            if linear:
                self.quant_method = UnquantizedLinearMethod()

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.down, self.norm = Layer(12), Layer(4), Layer(16, linear=False)

        def load_weights(self, weights: Iterator[tuple[str, Any]]) -> set[str]:
            own, loaded = dict(self.named_parameters()), set()
            for name, values in weights:
                if name[0] in "qkv":  # a third of the rows each
                    at = 4 * "qkv".index(name[0])
                    own["qkv.weight"][at : at + 4].copy_(values)
                    loaded.add("qkv.weight")
                else:
                    own[name].copy_(values)
                    loaded.add(name)
            return loaded

    numbers = np.random.default_rng(1)
    shapes = {f"{name}.weight": (4, 16) for name in ("q", "k", "v", "down")} | {"norm.weight": (16,)}
    tensors = {name: numbers.random(shape, np.float32) for name, shape in shapes.items() if name != lacking}
    (origin / INDEX).unlink()
    (origin / SECOND).unlink()
    save_file(tensors, origin / FIRST)
    with LocalModel(known(server), server.options) as model:
        config = type("Config", (), {"model": str(model.wait_engine())})
        if lacking is None:
            vllm_loader.load(Model(), config)
            return
        with pytest.raises(WeightsError, match=says) as raised:
            vllm_loader.load(Model(), config)
        assert str(raised.value).startswith(f"model {URI}: ")


# -- 7 and 8: not allowed, not there ----------------------------------------------------------


def test_row_07_no_access_is_told_with_object_and_key_and_not_asked_for_again_and_again(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    manifest = known(server)
    server.behave(access_key="another")
    said = is_refused(manifest, server.options, cache, "not allowed: s3://bucket/models/m/.* as key ")
    assert "HTTP 403, with fresh credentials too" in said
    assert "secret" not in said
    assert 2 <= asked(server) <= 40  # of 25 chunks


def test_row_07_a_token_that_expires_mid_load(server: EmulatorProcess, origin: Path, cache: Path) -> None:
    manifest = known(server)
    server.behave(expires_after=12)
    says = r"not allowed: s3://bucket/models/m/.* as key "
    with LocalModel(manifest, server.options) as model, pytest.raises(WeightsError, match=says):
        list(StreamedWeights.of(model.wait_engine()).tensors())
    assert not (cache / manifest.key).exists()
    assert asked(server) <= 12 + 40


def test_row_07_http_401_is_no_access_too(web: Webs, cache: Path) -> None:
    closed = web(lambda wanted: wanted.say(401))
    is_refused(closed.manifest, None, cache, r"not allowed: http://.*/m/model\.safetensors \(HTTP 401")
    assert closed.requests <= 40


CREDENTIALS = """
import datetime, json, sys
from pathlib import Path
until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=1)
key = Path(sys.argv[1]).read_text()
told = dict(Version=1, AccessKeyId=key, SecretAccessKey="s", SessionToken="t", Expiration=until.isoformat())
print(json.dumps(told))
"""


def test_row_07_fresh_credentials_are_asked_for_once_and_the_load_goes_on(
    server: EmulatorProcess, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that a helper gives out for a minute, as clouds do; the store ends the first one early."""
    key = tmp_path / "key"
    key.write_text("first")
    (tmp_path / "helper.py").write_text(CREDENTIALS)
    helper = f"{sys.executable} {tmp_path / 'helper.py'} {key}"
    (tmp_path / "config").write_text(f"[default]\nregion = us-east-1\ncredential_process = {helper}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    options = replace(server.options, access_key_id=None, secret_access_key=None)
    server.behave(access_key="first", node_rate=3e6)
    manifest = replace(read_manifest(URI, options), chunk_bytes=CHUNK)
    with LocalModel(manifest, options) as model:
        _until(lambda: model.marks().count(1) >= 6)
        key.write_text("second")
        server.ask("PUT", "behaviour", {"access_key": "second", "node_rate": 3e6})
        folder = model.wait_whole()
        assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()
    assert model.outcome is not None
    assert 1 <= model.outcome.faults["denied"] <= 40


def _until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_row_07_who_asks_anew_after_a_failure_tries_anew(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    for round_number in range(8):
        manifest = replace(known(server), chunk_bytes=CHUNK + 4096 * round_number)
        server.behave(access_key="another")
        is_refused(manifest, server.options, cache, "not allowed")
        server.behave()
        arrives(manifest, server.options, origin)


def test_row_08_what_is_gone_when_the_job_is_planned(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    manifest = known(server)
    (origin / SECOND).unlink()
    with pytest.raises(WeightsError, match=r"no such object: s3://bucket/models/m/model-2\.safetensors"):
        check_remote(manifest, server.options)
    is_refused(manifest, server.options, cache, r"no such object: .*/model-2\.safetensors; it was there when")
    with pytest.raises(WeightsError, match=r"tensor 'head' is not in model-2\.safetensors, which is missing"):
        check_remote(known(server), server.options)


def test_row_08_what_goes_while_it_is_read(server: EmulatorProcess, origin: Path, cache: Path) -> None:
    manifest = known(server)
    server.behave(node_rate=3e6)
    with LocalModel(manifest, server.options) as model:
        _until(lambda: model.marks().count(1) >= 5)
        (origin / SECOND).unlink()
        with pytest.raises(WeightsError, match=r"no such object: .*/model-2\.safetensors; it was there when"):
            model.wait_whole()
    assert not (cache / manifest.key).exists()


# -- 9 to 11: answers that are none -----------------------------------------------------------


def _reset(wanted: Wanted) -> None:
    wanted.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionError


def _cut(wanted: Wanted) -> None:
    wanted.say(206, wanted.data[:1000], Content_Length=len(wanted.data))
    raise ConnectionError


def _closed(wanted: Wanted) -> None:
    raise ConnectionError


def _silent(wanted: Wanted) -> None:
    time.sleep(30)


def _garbage(wanted: Wanted) -> None:
    wanted.connection.sendall(b"\0\xff what is this?\r\n\r\n")
    raise ConnectionError


TROUBLE: dict[str, Answer] = {
    **{str(status): lambda wanted, status=status: wanted.say(status) for status in (429, 500, 502, 503, 504)},
    "reset": _reset,
    "cut": _cut,
    "closed": _closed,
    "garbage": _garbage,
}


@pytest.mark.parametrize("kind", TROUBLE)
def test_row_09_a_store_in_trouble_is_asked_again(kind: str, web: Webs) -> None:
    troubled = web(sound, *[sound, TROUBLE[kind]] * 4)
    model = comes_from(troubled)
    assert model.outcome is not None
    faults = sum(model.outcome.faults.values())
    assert faults == 4 or (kind in ("reset", "closed") and faults < 4)  # a kept connection may be closed
    assert troubled.requests == len(model.plan.chunks) - 1 + 4


def test_row_09_an_answer_that_does_not_come_is_asked_for_twice(web: Webs) -> None:
    silent = web(sound, _silent, sound, _silent)
    began = time.monotonic()
    model = comes_from(silent)
    assert time.monotonic() - began < 8
    assert model.outcome is not None
    assert model.outcome.hedges == 2


@pytest.mark.parametrize("kind", ["reset", "cut", "closed", "garbage"])
def test_row_09_trouble_that_does_not_end_is_told_with_file_and_range(
    kind: str, web: Webs, cache: Path, limited: Limiter
) -> None:
    limited(tries=3)
    broken = web(TROUBLE[kind], sound, sound)
    says = r"/m/model\.safetensors, bytes [\d,]+ to [\d,]+: could not be read in 3 tries: "
    is_refused(broken.manifest, None, cache, says)
    assert broken.requests <= 2 * 3 * len(ChunkPlan(broken.manifest).chunks)


def test_row_09_a_store_that_stays_busy_is_left_in_peace_and_told(
    server: EmulatorProcess, origin: Path, cache: Path, limited: Limiter
) -> None:
    limited(stall_seconds=4.0)
    manifest = known(server)
    server.behave(busy_share=1.0)
    is_refused(
        manifest, server.options, cache, r"bytes 0 to [\d,]+: nothing arrived for a long time \(\d+ x busy\)"
    )
    assert asked(server) < 25 * 8  # each waits twice as long as the time before


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_row_09_a_store_that_is_busy_at_times_gives_the_whole_model(
    share: float, server: EmulatorProcess, origin: Path
) -> None:
    manifest = known(server)
    server.behave(busy_share=share, first_byte_seconds=0.02)
    arrives(manifest, server.options, origin)


def _whole(wanted: Wanted) -> None:
    wanted.say(200, wanted.content, Content_Range=None)


def _short(wanted: Wanted) -> None:
    wanted.say(206, wanted.data[:-1])


def _short_and_honest(wanted: Wanted) -> None:
    total = len(wanted.content)
    wanted.say(206, wanted.data[:-1], Content_Range=f"bytes {wanted.start}-{wanted.end - 2}/{total}")


def _long(wanted: Wanted) -> None:
    wanted.say(206, wanted.data + b"\0")


def _long_without_length(wanted: Wanted) -> None:
    wanted.say(206, wanted.data + b"\0", Content_Length=None)
    raise ConnectionError


def _chunked(wanted: Wanted, data: bytes) -> None:
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:7], data[7:])) + b"0\r\n\r\n"
    wanted.say(206, body, Content_Length=None, Transfer_Encoding="chunked")


def _elsewhere(wanted: Wanted) -> None:
    total = len(wanted.content)
    wanted.say(206, wanted.data, Content_Range=f"bytes {wanted.start + 1}-{wanted.end}/{total}")


WRONG: dict[str, Answer] = {
    "200": _whole,
    "short": _short,
    "short and honest": _short_and_honest,
    "long": _long,
    "long without length": _long_without_length,
    "short in pieces": lambda wanted: _chunked(wanted, wanted.data[:-1]),
    "long in pieces": lambda wanted: _chunked(wanted, wanted.data + b"\0"),
    "another range": _elsewhere,
    "no range": lambda wanted: wanted.say(206, wanted.data, Content_Range=None),
    "of another size": lambda wanted: wanted.say(
        206, wanted.data, Content_Range=f"bytes {wanted.start}-{wanted.end - 1}/{len(wanted.content) + 1}"
    ),
    "encoded": lambda wanted: wanted.say(206, wanted.data, Content_Encoding="gzip"),
    "204": lambda wanted: wanted.say(204),
    "302": lambda wanted: wanted.say(302, Location="http://127.0.0.1:9/"),
    "408": lambda wanted: wanted.say(408),
}


@pytest.mark.parametrize("kind", WRONG)
def test_row_10_an_answer_that_is_not_the_range_is_asked_for_again(kind: str, web: Webs) -> None:
    wrong = web(sound, *[WRONG[kind], sound] * 3)
    model = comes_from(wrong)
    assert model.outcome is not None
    assert sum(model.outcome.faults.values()) == 3


@pytest.mark.parametrize("kind", WRONG)
def test_row_10_a_store_that_never_gives_the_range_is_told_with_file_and_range(
    kind: str, web: Webs, cache: Path, limited: Limiter
) -> None:
    limited(tries=3)
    wrong = web(WRONG[kind])
    says = r"/m/model\.safetensors, bytes [\d,]+ to [\d,]+: could not be read in 3 tries: "
    is_refused(wrong.manifest, None, cache, says)


def test_row_10_pieces_and_no_length_are_fine_if_the_bytes_are_right(web: Webs) -> None:
    def closing(wanted: Wanted) -> None:
        wanted.say(206, wanted.data, Content_Length=None)
        raise ConnectionError

    odd_ones = web(sound, *[closing, lambda wanted: _chunked(wanted, wanted.data)] * 3)
    model = comes_from(odd_ones)
    assert model.outcome is not None
    assert model.outcome.faults == {}


def test_row_11_a_model_that_is_replaced_while_it_is_read(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    manifest = known(server)
    server.behave(changes_after=12)
    with LocalModel(manifest, server.options) as model:
        says = r"s3://bucket/models/m/model-[12]\.safetensors was replaced since the job was opened; start"
        with pytest.raises(WeightsError, match=says):
            list(StreamedWeights.of(model.wait_engine()).tensors())
    assert not (cache / manifest.key).exists()
    assert known(server).key != manifest.key  # another state is another model
    arrives(known(server), server.options, origin)


def test_row_11_a_server_that_does_not_mind_if_match_is_found_out_by_its_answer(
    web: Webs, cache: Path
) -> None:
    changing = web(lambda wanted: wanted.say(206, wanted.data, ETag='"2"'), *[sound] * 5)
    says = r"/m/model\.safetensors was replaced since the job was opened"
    is_refused(changing.manifest, None, cache, says)


# -- 12: wrong bytes --------------------------------------------------------------------------


@pytest.fixture
def published(server: EmulatorProcess, origin: Path) -> Manifest:
    publish(str(origin), chunk_bytes=CHUNK)
    manifest = read_manifest(URI, server.options)
    assert all(file.digests for file in manifest.files if file.size)
    return manifest


def test_row_12_flipped_bits_are_asked_for_again(published: Manifest, origin: Path) -> None:
    """A server of its own, whose dice are known: two of its answers have a wrong bit."""
    generator = random.Random(0)  # the emulator's own seed
    dice = [generator.random() for _ in range(len(ChunkPlan(published).chunks) + 2)]
    share = sorted(dice)[1] + 1e-9
    server = EmulatorProcess(origin.parents[2])
    try:
        server.behave(corrupt_share=share)
        model = arrives(published, server.options, origin)
    finally:
        server.stop()
    assert model.outcome is not None
    assert model.outcome.faults.keys() == {"corrupt"}
    assert model.outcome.faults["corrupt"] >= 2


def test_row_12_a_store_whose_bytes_are_all_wrong(
    published: Manifest, server: EmulatorProcess, cache: Path
) -> None:
    server.behave(corrupt_share=1.0)
    says = r"s3://bucket/models/m/.*, bytes [\d,]+ to [\d,]+: came 3 times with another checksum than"
    is_refused(published, server.options, cache, says)


@pytest.mark.parametrize("at", [0, 3_000_000, -1])
def test_row_12_one_bit_wrong_at_rest_is_told_with_file_and_range(
    at: int, published: Manifest, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    """Also where neither size nor time of the object changed."""
    path = origin / SECOND
    stamp, data = path.stat().st_mtime_ns, bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
    os.utime(path, ns=(stamp, stamp))
    start = (at % len(data)) // CHUNK * CHUNK
    says = rf"/model-2\.safetensors, bytes {start:,} to {min(start + CHUNK, len(data)):,}: came 3 times"
    is_refused(published, server.options, cache, says)


def test_row_12_a_manifest_of_another_state(server: EmulatorProcess, origin: Path) -> None:
    (origin / PUBLISHED).write_text("{}")
    with pytest.raises(WeightsError, match=rf"s3://bucket/models/m/{PUBLISHED}: not a manifest"):
        read_manifest(URI, server.options)


def test_row_12_a_hub_whose_bytes_were_wrong_once_is_read_again(
    server: EmulatorProcess, origin: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says a checksum of whole files alone, so nothing of what came is to be believed."""
    repository = server.root / "hub/org/m"
    repository.mkdir(parents=True, exist_ok=True)
    for file in origin.iterdir():
        (repository / file.name).write_bytes(file.read_bytes())
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(cache / "nobody"))
    manifest = read_manifest("hf://org/m")
    server.behave(corrupt_share=1.0)
    with LocalModel(manifest) as model, pytest.raises(WeightsError, match=r"SHA-256|not valid|safetensors"):
        model.wait_whole()
    assert not (cache / manifest.key).exists()
    server.behave()
    time.sleep(0.2)
    with LocalModel(manifest) as model:
        folder = model.wait_whole()
        assert all((folder / name).read_bytes() == (origin / name).read_bytes() for name in (FIRST, SECOND))


class OnePeer:
    """Another node that says it has everything."""

    def __init__(self, web: Web, chunks: int) -> None:
        self._web, self._chunks = web, chunks

    def home(self, chunk: int) -> bool:
        return False

    def look(self) -> Mapping[str, bytes]:
        return {"peer": b"\1" * self._chunks}

    def address(self, peer: str, file: str) -> Address:
        return Address(url=f"{self._web.uri}/{file}", headers={})


def test_row_12_a_poisoned_peer_is_quarantined_and_the_origin_asked(
    published: Manifest, server: EmulatorProcess, origin: Path, web: Webs, limited: Limiter
) -> None:
    limited(patience=0.2)
    server.behave()

    def poisoned(wanted: Wanted) -> None:
        wanted.say(206, wanted.data[:-1] + bytes([wanted.data[-1] ^ 1]))

    liar = web(poisoned)
    liar.files = {file.name: (origin / file.name).read_bytes() for file in published.files}
    with LocalModel(
        published, server.options, peers=OnePeer(liar, len(ChunkPlan(published).chunks))
    ) as model:
        folder = model.wait_whole()
        assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()
    assert model.outcome is not None
    assert 1 <= model.outcome.faults["corrupt"] <= Limits().peer_window
    assert liar.requests <= Limits().peer_window
    assert sum(server.served().values()) >= sum(file.size for file in published.files if file.is_weights)


# -- 13: slow ---------------------------------------------------------------------------------


def _trickling(wanted: Wanted) -> None:
    """A byte at a time: never silent, never done."""
    wanted.say(206, Content_Length=len(wanted.data))
    for byte in wanted.data:
        wanted.connection.sendall(bytes([byte]))
        time.sleep(0.2)


def test_row_13_a_connection_that_trickles_is_given_up(web: Webs, limited: Limiter) -> None:
    limited(hedge_samples=1000)  # nobody asks twice
    slow = web(sound, sound, _trickling)
    began = time.monotonic()
    model = comes_from(slow)
    assert time.monotonic() - began < 12
    assert model.outcome is not None
    assert model.outcome.faults == {"slow": 1}


def test_row_13_slow_connections_are_overtaken(web: Webs) -> None:
    slow = web(sound, _trickling, sound, sound, _trickling)
    began = time.monotonic()
    model = comes_from(slow)
    assert time.monotonic() - began < 4.5  # sooner than they are given up
    assert model.outcome is not None
    assert model.outcome.hedges == 2


def test_row_13_connections_that_stall_half_way_are_overtaken(web: Webs) -> None:
    def stalled(wanted: Wanted) -> None:
        wanted.say(206, wanted.data[: len(wanted.data) // 2], Content_Length=len(wanted.data))
        time.sleep(30)

    stalling = web(sound, stalled, sound, sound, stalled)
    began = time.monotonic()
    model = comes_from(stalling)
    assert time.monotonic() - began < 8
    assert model.outcome is not None
    assert model.outcome.hedges == 2


def test_row_13_a_store_that_stalls_for_good_is_told(
    server: EmulatorProcess, origin: Path, cache: Path, limited: Limiter
) -> None:
    limited(stall_seconds=3.0)
    manifest = known(server)
    server.behave(stall_share=1.0)
    began = time.monotonic()
    is_refused(
        manifest, server.options, cache, r"bytes 0 to [\d,]+: nothing arrived for a long time \(no answer\)"
    )
    assert time.monotonic() - began < 8


# -- 14: no room ------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache in a memory file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "dray-test", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_row_14_a_model_that_has_no_room_is_told_before_anything_is_read(
    server: EmulatorProcess, origin: Path, small: Path
) -> None:
    manifest = known(server)
    (small / "other").write_bytes(bytes(4 << 20))
    server.behave()
    with pytest.raises(WeightsError) as raised, LocalModel(manifest, server.options):
        pass
    said = str(raised.value)
    assert said.startswith(f"no room for model {URI} (0.01 GB)")
    assert str(small) in said
    assert "DRAY_MODEL_CACHE" in said
    assert asked(server) == 0


def test_row_14_memory_that_fills_up_meanwhile_is_an_error_and_nobody_dies(
    server: EmulatorProcess, origin: Path, small: Path
) -> None:
    manifest = known(server)
    server.behave(node_rate=2e6)
    with LocalModel(manifest, server.options) as model:
        weights = StreamedWeights.of(model.wait_engine()).tensors()
        _fill_up(small / "other")
        says = (
            rf"no room for model {URI} \(0\.01 GB\) in {small}; set DRAY_MODEL_CACHE to a folder on a larger"
        )
        with pytest.raises(WeightsError, match=says):
            list(weights)
        with pytest.raises(WeightsError, match=says):
            model.wait_whole()
    assert not (small / manifest.key).exists()
    (small / "other").unlink()
    server.behave()
    time.sleep(0.2)
    with LocalModel(manifest, server.options) as model:  # with what was there already
        assert (model.wait_whole() / SECOND).read_bytes() == (origin / SECOND).read_bytes()
    assert 0 < sum(server.served().values()) < manifest.size


@pytest.mark.parametrize("begun", [False, True], ids=["at first", "after an earlier try"])
def test_row_14_a_disk_that_does_not_take_the_files_is_told_at_once(
    begun: bool, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    """Here something else lies where a file is to be."""
    manifest = known(server)
    server.behave(node_rate=3e6)
    if begun:
        with LocalModel(manifest, server.options) as model:
            _until(lambda: model.marks().count(1) >= 3)
    in_the_way = cache / f"{manifest.key}.partial/config.json"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir(parents=True)
    with LocalModel(manifest, server.options) as model, pytest.raises(WeightsError, match="Is a directory"):
        model.wait_whole(_patience(5))
    assert not (cache / manifest.key).exists()


def _patience(seconds: float) -> Callable[[], None]:
    """Ends a wait that takes longer."""
    deadline = time.monotonic() + seconds

    def look() -> None:
        assert time.monotonic() < deadline, "nobody said anything"

    return look


def _fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


# -- 15: killed -------------------------------------------------------------------------------

FILLER = """
import sys
from dataclasses import replace
from dray.requests import ObjectStoreOptions
from dray.weights import LocalModel, read_manifest
keys = dict(access_key_id="k", secret_access_key="s")
options = ObjectStoreOptions(endpoint=sys.argv[1], region="r", allow_http=True, **keys)
manifest = replace(read_manifest("s3://bucket/models/m", options), chunk_bytes=int(sys.argv[2]))
print("begins", flush=True)
with LocalModel(manifest, options) as model:
    model.wait_whole()
print("done", flush=True)
"""


def _filler(server: EmulatorProcess) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FILLER, server.url, str(CHUNK)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def _marked(cache: Path, manifest: Manifest) -> bytes:
    path = cache / f"{manifest.key}.partial" / READY
    return ReadyMap(path, writable=False).marks if path.is_file() else b""


def _fetchers() -> list[psutil.Process]:
    """The fetch processes of this one; a child of an earlier test may lie there dead."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "fetcher.py" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_row_15_a_fetch_process_that_is_killed_is_replaced(server: EmulatorProcess, origin: Path) -> None:
    manifest = known(server)
    server.behave(node_rate=3e6)
    with LocalModel(manifest, server.options) as model:
        for goal in (4, 10):
            _until(lambda goal=goal: model.marks().count(1) >= goal)  # type: ignore[misc]
            fetchers = _fetchers()
            assert fetchers
            fetchers[0].kill()
        folder = model.wait_whole()
        assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()
    assert model.outcome is not None
    assert model.outcome.faults["fetcher"] >= 1
    assert sum(server.served().values()) <= manifest.size + 2 * WINDOW * CHUNK


def test_row_15_a_filler_that_is_killed_is_taken_over_from_at_once(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    manifest = known(server)
    server.behave(node_rate=3e6)
    filler = _filler(server)
    _until(lambda: _marked(cache, manifest).count(1) >= 5)
    children = psutil.Process(filler.pid).children(recursive=True)
    with LocalModel(manifest, server.options) as model:
        weights = StreamedWeights.of(model.wait_engine())
        time.sleep(0.3)
        assert model.outcome is None
        filler.send_signal(signal.SIGKILL)
        filler.wait()
        marked = _marked(cache, manifest).count(1)
        found = dict(weights.tensors())
        folder = model.wait_whole()
    expected = dict(deserialize((origin / SECOND).read_bytes()))["head"]["data"]
    assert found["head"].numpy().tobytes() == bytes(expected)
    assert (folder / SECOND).read_bytes() == (origin / SECOND).read_bytes()
    assert psutil.wait_procs(children, timeout=5)[1] == []
    again = sum(server.served().values()) - manifest.size
    assert 5 <= marked < len(model.plan.chunks)
    assert again <= WINDOW * CHUNK
    assert model.outcome is not None


def test_row_15_a_filler_that_dies_before_it_began_is_taken_over_from(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    """It holds the lock, and has not made the map yet."""
    manifest = known(server)
    code = (
        "import fcntl, sys, time\n"
        "lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX); print('held', flush=True)\n"
        "time.sleep(60)"
    )
    cache.mkdir(mode=0o700)
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(cache / f"{manifest.key}.fill")], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with LocalModel(manifest, server.options) as model:
        time.sleep(0.3)
        holder.kill()
        holder.wait()
        began = time.monotonic()
        model.wait_whole()
        assert time.monotonic() - began < 5


def test_row_15_of_several_that_race_one_fills(server: EmulatorProcess, origin: Path, cache: Path) -> None:
    manifest = known(server)
    server.behave(node_rate=20e6)
    fillers = [_filler(server) for _ in range(3)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: arrives(manifest, server.options, origin), range(2)))
    for filler in fillers:
        assert filler.communicate(timeout=30)[0].split() == ["begins", "done"]
        assert filler.returncode == 0
    assert sum(server.served().values()) - 3 * (origin / INDEX).stat().st_size == manifest.size


# -- 16 and 17: odd ones and evil ones --------------------------------------------------------


def test_row_16_tensors_of_any_shape_name_and_number(server: EmulatorProcess, origin: Path) -> None:
    torch = pytest.importorskip("torch")
    for file in origin.iterdir():
        file.unlink()
    odd(origin, tiny=100_000)
    (origin / "merges.txt").write_text("")
    manifest = known(server)
    check_remote(manifest, server.options)
    with LocalModel(manifest, server.options) as model:
        weights = StreamedWeights.of(model.wait_engine())
        found = dict(weights.tensors())
        model.wait_whole()
    stored = {
        name: stored
        for file in check_checkpoint(origin)
        for name, stored in deserialize((origin / file).read_bytes())
    }
    assert found.keys() == stored.keys()
    assert len(found) > 100_000
    for name, value in found.items():
        expected = stored[name]
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        assert data == bytes(expected["data"]), name
        if expected["dtype"] != "F4":
            assert list(value.shape) == expected["shape"], name
    assert weights.stats.tensors == len(found)


def test_row_16_the_same_tensor_in_two_files_needs_an_index(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / INDEX).unlink()
    save_file({"embed": np.zeros(4, np.float32)}, origin / SECOND)
    _refused_before_it_is_fetched(server, cache, "tensor 'embed' is in model-1.safetensors and in model-2")


@pytest.mark.parametrize(
    "name",
    [
        "../m2/model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..",
        "",
        "model.bin",
        "model.safetensors\0",
    ],
)
def test_row_17_an_index_that_leads_out_of_the_folder(
    name: str, server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    (origin / INDEX).write_bytes(_index(embed=FIRST, head=name))
    with pytest.raises(WeightsError, match=r"tensor 'head': .* is not a safetensors file of this folder"):
        read_manifest(URI, server.options)
    assert not cache.exists()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/pwned-by-a-test",)


def test_row_17_pickles_are_neither_read_nor_loaded(
    server: EmulatorProcess, origin: Path, cache: Path
) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "modeling_evil.py"):
        (origin / name).write_bytes(pickle.dumps(Evil()))
    model = arrives(known(server), server.options, origin)
    names = {file.name for file in model.shelf.whole.iterdir()}
    assert names == {"config.json", "merges.txt", FIRST, SECOND, INDEX, READY, ".dray-model.json"}
    (origin / INDEX).unlink()
    (origin / SECOND).write_bytes(pickle.dumps(Evil()))  # under another name
    server.behave()
    _refused_before_it_is_fetched(server, cache, r"model-2\.safetensors: ")
    for name in (FIRST, SECOND):
        (origin / name).unlink()
    with pytest.raises(ConfigError, match="its weights are pickle files"):
        read_manifest(URI, server.options)
    assert not Path("/tmp/pwned-by-a-test").exists()


@pytest.mark.parametrize("name", [".dray-model.json", ".dray-ready"])
def test_row_17_a_model_that_brings_files_of_ours(name: str, server: EmulatorProcess, origin: Path) -> None:
    """What says which chunks there are must not come from the model."""
    (origin / name).write_text(json.dumps({"uri": "evil", "chunk_bytes": 1 << 40, "files": []}))
    manifest = known(server)
    assert name not in {file.name for file in manifest.files}
    with LocalModel(manifest, server.options) as model:
        weights = StreamedWeights.of(model.wait_engine())
        assert weights.name == URI
        assert len(list(weights.tensors())) == 2


def test_row_17_a_config_that_is_too_deep(server: EmulatorProcess, origin: Path) -> None:
    (origin / "config.json").write_text("[" * 100_000)
    with pytest.raises(WeightsError, match=r"config\.json: not valid JSON"):
        check_remote(known(server), server.options)


def test_row_17_links_in_a_local_folder(origin: Path, tmp_path: Path) -> None:
    """Hubs' own caches consist of them; what they lead to must be there, and be weights."""
    pytest.importorskip("torch")
    folder = tmp_path / "model"
    folder.mkdir()
    for file in origin.iterdir():
        (folder / file.name).symlink_to(file)
    assert [name for name, _ in StreamedWeights.of(folder).tensors()] == ["embed", "head"]
    for target, says in (
        (tmp_path / "nowhere", r"model-2\.safetensors: missing"),
        (folder / SECOND, r"model-2\.safetensors: "),  # in a circle
        (Path("/etc/passwd"), r"model-2\.safetensors: "),
        (Path("/dev/null"), r"model-2\.safetensors: 0 bytes are too few"),
        (tmp_path, r"model-2\.safetensors: "),
    ):
        (folder / SECOND).unlink()
        (folder / SECOND).symlink_to(target)
        with pytest.raises(WeightsError, match=says):
            check_checkpoint(folder)
        with pytest.raises(WeightsError, match=says):
            StreamedWeights.of(folder)
