"""What the ladder of weights measures: each contestant, run in a process of its own by ``weights``."""

from __future__ import annotations

import asyncio
import mmap
import multiprocessing
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from dray.storage import ObjectStoreOptions
from dray.weights.node.places import CacheRoot, prepare
from tests.benchmarks import workload

BUCKET, PREFIX = "bucket", "models/m"
URI = f"s3://{BUCKET}/{PREFIX}"
NODE_RATE = 1e9
S3 = {"first_byte_seconds": 0.03, "connection_rate": 90e6, "node_rate": NODE_RATE}
"""How S3 behaves towards one node (weights_s3)."""
RANGE = 8 << 20  # bytes of one request, everybody's
WARMED = 2.5  # times the model: what a contestant may touch, at most


# -- what is measured, each in a process of its own ------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one process is to do: read the model at ``uri`` of ``url``, whose files also lie in ``origin``.

    ``memory`` is a folder in shared memory for one contestant alone, ``disk`` one on a disk.
    """

    origin: str
    url: str
    uri: str
    memory: str
    disk: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """The weights."""
        return sorted(Path(self.origin).glob("*.safetensors"))

    @property
    def options(self) -> ObjectStoreOptions:
        """How to reach the store."""
        return ObjectStoreOptions(
            endpoint=self.url,
            region="us-east-1",
            access_key_id="key",
            secret_access_key="secret",
            allow_http=self.url.startswith("http://"),
        )


class Meter:
    """Seconds by the clock until ``stop``, and processor seconds of this process and its children in all."""

    def __init__(self, work: Work) -> None:
        warm(int(WARMED * sum(path.stat().st_size for path in work.files)))
        self.told: dict[str, Any] = {}
        self._cpu = _cpu_seconds()
        self._began = time.perf_counter()

    def note(self, name: str) -> None:
        """That something happened now; the first time counts."""
        self.told.setdefault(name, time.perf_counter() - self._began)

    def stop(self, size: int) -> None:
        """The work on ``size`` bytes is done."""
        self.told |= {"seconds": time.perf_counter() - self._began, "bytes": size}

    def result(self) -> dict[str, Any]:
        """Everything, once all children have ended."""
        return self.told | {"cpu": _cpu_seconds() - self._cpu}


def warm(size: int) -> None:
    """Touch so much memory and free it again: the host of a virtual machine has it at hand then."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def memcpy(work: Work) -> dict[str, Any]:
    """Copy the bytes from memory into a fresh mapping, with a thread for each core."""
    import numpy as np

    sources = [np.frombuffer(_mapped(path, mmap.ACCESS_READ, populate=True), np.uint8) for path in work.files]
    targets = [np.frombuffer(mapping, np.uint8) for mapping in _fresh_files(work)]
    pieces = iter(_pieces(work))
    guard = threading.Lock()

    def copy() -> None:
        while True:
            with guard:
                piece = next(pieces, None)
            if piece is None:
                return
            file, start, end = piece
            np.copyto(targets[file][start:end], sources[file][start:end])  # without Python's lock

    meter = Meter(work)
    _in_threads(copy, len(os.sched_getaffinity(0)))
    meter.stop(sum(source.size for source in sources))
    return meter.result()


def sink(work: Work) -> dict[str, Any]:
    """Receive everything into memory that is used again and again."""
    return _received(work, None)


def ranged(work: Work) -> dict[str, Any]:
    """Receive everything into a fresh mapping, to its place: less cannot be done."""
    return _received(work, _fresh_files(work))


def dray(work: Work) -> dict[str, Any]:
    """``LocalModel`` until the model is whole: every chunk judged by the published manifest."""
    from dray.weights import LocalModel, read_manifest

    manifest = read_manifest(work.uri, work.options)
    assert all(file.digests for file in manifest.files), "no published manifest"
    meter = Meter(work)
    with LocalModel(manifest, work.options) as model:
        folder = model.wait_whole()
        meter.stop(size_of(folder))
        assert model.outcome is not None
        meter.told |= {"faults": model.outcome.faults, "hedges": model.outcome.hedges}
    return meter.result()


def dray_load(work: Work) -> dict[str, Any]:
    """The same, and beside it every tensor is copied into its parameter as soon as it is there."""
    from dray.weights import LocalModel, read_manifest
    from dray.weights.loading.streamed import StreamedWeights

    manifest = read_manifest(work.uri, work.options)
    parameters = _parameters(work)
    meter = Meter(work)
    with LocalModel(manifest, work.options) as model:
        weights = StreamedWeights.of(model.wait_engine())
        size = _fill(parameters, weights.tensors(), meter)
        meter.stop(size)
        meter.told["waited"] = weights.stats.waited
        model.wait_whole()  # the fetch processes have ended by then: what they used is counted
    return meter.result()


def runai(work: Work) -> dict[str, Any]:
    """Run:ai's streamer into memory; every tensor is taken and dropped."""
    return _runai(work, lambda tensors, meter: _drained(tensors, meter))


def runai_load(work: Work) -> dict[str, Any]:
    """The same into parameters, by way of the clone that vLLM's adapter makes of each tensor."""
    parameters = _parameters(work)

    def cloned(tensors: Iterator[Any]) -> Iterator[Any]:
        for name, tensor in tensors:
            yield name, tensor.clone()

    return _runai(work, lambda tensors, meter: _fill(parameters, cloned(tensors), meter))


def _runai(work: Work, use: Callable[[Iterator[Any], Meter], int]) -> dict[str, Any]:
    from runai_model_streamer import SafetensorsStreamer

    paths = [f"{work.uri}/{path.name}" for path in work.files]
    meter = Meter(work)
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(paths, device="cpu")
        meter.stop(use(streamer.get_tensors(), meter))
    return meter.result()


def obstore(work: Work) -> dict[str, Any]:
    """Ranges by obstore's asynchronous calls, each copied to its place in one buffer."""
    from obstore.store import S3Store

    options = work.options
    store = S3Store(
        BUCKET,
        endpoint=options.endpoint,
        region=options.region,
        access_key_id=options.access_key_id,
        secret_access_key=options.secret_access_key,
        client_options={"allow_http": options.allow_http},
    )
    paths = [f"{PREFIX}/{path.name}" for path in work.files]
    buffers = [memoryview(mmap.mmap(-1, path.stat().st_size)) for path in work.files]
    pieces = iter(_pieces(work))

    async def take() -> None:
        for file, start, end in pieces:
            buffers[file][start:end] = memoryview(
                await store.get_range_async(paths[file], start=start, end=end)
            )

    async def take_all() -> None:
        await asyncio.gather(*(take() for _ in range(work.settings["concurrency"])))

    meter = Meter(work)
    asyncio.run(take_all())
    meter.stop(sum(map(len, buffers)))
    return meter.result()


def boto3(work: Work) -> dict[str, Any]:
    """``download_file`` to a disk, then ``safetensors.torch.load_file``."""
    from safetensors.torch import load_file

    meter = Meter(work)
    tensors = [load_file(path) for path in _downloaded(work)]
    meter.stop(sum(tensor.nbytes for file in tensors for tensor in file.values()))
    return meter.result()


def boto3_load(work: Work) -> dict[str, Any]:
    """The same, and then into parameters."""
    from safetensors.torch import load_file

    parameters = _parameters(work)
    meter = Meter(work)
    tensors = [load_file(path) for path in _downloaded(work)]
    meter.stop(_fill(parameters, (item for file in tensors for item in file.items()), meter))
    return meter.result()


def vllm_dray(work: Work) -> dict[str, Any]:
    """An engine whose weights stream in by dray while it starts."""
    from dray.weights import read_manifest

    return _vllm(work, work.uri, weights=read_manifest(work.uri, work.options), objects=work.options)


def vllm_runai(work: Work) -> dict[str, Any]:
    """The same engine with vLLM's own way to read object stores."""
    return _vllm(work, work.uri, load_format="runai_streamer")


def vllm_local(work: Work) -> dict[str, Any]:
    """The same engine with the model's folder in memory before it starts: the time without any fetch."""
    return _vllm(work, work.origin)


CONTESTANTS: dict[str, Callable[[Work], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        *(memcpy, sink, ranged, dray, dray_load, runai, runai_load, obstore, boto3, boto3_load),
        *(vllm_dray, vllm_runai, vllm_local),
    )
}


# -- parts of them ---------------------------------------------------------------------------------


def _pieces(work: Work) -> list[tuple[int, int, int]]:
    """Every range: file number, start, end."""
    return [
        (number, start, min(start + RANGE, size))
        for number, size in enumerate(path.stat().st_size for path in work.files)
        for start in range(0, size, RANGE)
    ]


def _mapped(path: Path, access: int, *, populate: bool = False) -> mmap.mmap:
    with path.open("r+b" if access == mmap.ACCESS_WRITE else "rb") as file:
        if not populate:
            return mmap.mmap(file.fileno(), 0, access=access)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)


def _fresh_files(work: Work) -> list[mmap.mmap]:
    """A mapping for each file, in the memory that dray would use, of which nothing was touched yet."""
    prepare(CacheRoot(root=Path(work.memory), memory=True))
    folder = Path(work.memory) / "sink"
    folder.mkdir()
    found = []
    for path in work.files:
        with (folder / path.name).open("wb") as file:
            file.truncate(path.stat().st_size)
        found.append(_mapped(folder / path.name, mmap.ACCESS_WRITE))
    return found


def _in_threads(run: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _received(work: Work, targets: list[mmap.mmap] | None) -> dict[str, Any]:
    """Everything through raw sockets, by processes with threads, each with a connection of its own."""
    pieces, taken = _pieces(work), multiprocessing.get_context("fork").Value("i", 0)
    views = None if targets is None else [memoryview(target) for target in targets]

    def receive() -> None:
        scratch = memoryview(bytearray(RANGE))
        scratch[:] = bytes(RANGE)
        with _connected(work.url) as connection:
            while True:
                with taken.get_lock():
                    number, taken.value = taken.value, taken.value + 1
                if number >= len(pieces):
                    return
                file, start, end = pieces[number]
                view = scratch[: end - start] if views is None else views[file][start:end]
                _receive(connection, f"/{BUCKET}/{PREFIX}/{work.files[file].name}", start, view)

    meter = Meter(work)
    children = []
    for _ in range(work.settings["processes"]):
        if child := os.fork():
            children.append(child)
            continue
        _in_threads(receive, work.settings["threads"])
        os._exit(0 if taken.value >= len(pieces) else 1)
    ended = [os.waitpid(child, 0)[1] for child in children]
    assert not any(ended), "a process of the sink failed"
    meter.stop(sum(end - start for _, start, end in pieces))
    return meter.result()


def _connected(url: str) -> socket.socket:
    place = urlsplit(url)
    assert place.hostname is not None
    connection = socket.create_connection((place.hostname, place.port or 80), timeout=30)
    if place.scheme == "http":
        return connection
    return ssl.create_default_context().wrap_socket(connection, server_hostname=place.hostname)


def _receive(connection: socket.socket, path: str, start: int, view: memoryview) -> None:
    """One range; no checks but that it is all there."""
    span = f"bytes={start}-{start + len(view) - 1}"
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nRange: {span}\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(4096)
    head, _, rest = head.partition(b"\r\n\r\n")
    assert b" 206 " in head.splitlines()[0], head
    view[: len(rest)] = rest
    at = len(rest)
    while at < len(view):
        count = connection.recv_into(view[at:])
        assert count, "the connection was closed"
        at += count


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _parameters(work: Work) -> dict[str, Any]:
    """Empty ones, as a model has them before its weights are loaded."""
    import torch
    from safetensors import safe_open

    found = {}
    for path in work.files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                shape = file.get_slice(name).get_shape()
                found[name] = torch.empty(shape, dtype=torch.bfloat16)
    return found


def _fill(parameters: dict[str, Any], tensors: Iterator[tuple[str, Any]], meter: Meter) -> int:
    """Copy every tensor into its parameter; returns their bytes."""
    left, size = set(parameters), 0
    for name, tensor in tensors:
        meter.note("first")
        parameters[name].copy_(tensor)
        left.remove(name)
        size += tensor.nbytes
    assert not left, f"no tensor came for {sorted(left)[:3]}"
    return size


def _drained(tensors: Iterator[tuple[str, Any]], meter: Meter) -> int:
    size = 0
    for _, tensor in tensors:
        meter.note("first")
        size += tensor.nbytes
    return size


def _downloaded(work: Work) -> list[Path]:
    import boto3 as aws
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    client = aws.client("s3", endpoint_url=work.url, config=Config(s3={"addressing_style": "path"}))
    transfer = TransferConfig(max_concurrency=work.settings["concurrency"], multipart_chunksize=RANGE)
    paths = [Path(work.disk) / path.name for path in work.files]
    for path in paths:
        client.download_file(BUCKET, f"{PREFIX}/{path.name}", str(path), Config=transfer)
    return paths


def _vllm(
    work: Work, model: str, *, weights: Any = None, objects: Any = None, **arguments: Any
) -> dict[str, Any]:
    """Build an engine and ask it one thing; ``ready`` is printed in between."""
    from dray.engine.protocol import EngineSpec
    from dray.engine.vllm_adapter.engine import VllmEngine
    from dray.kinds import Kind
    from dray.requests.model import Request

    fixed = {"enforce_eager": True, "max_model_len": 256, "max_num_seqs": 8, "dtype": "bfloat16"}
    engine = VllmEngine(
        EngineSpec(
            name="vllm",
            model=model,
            kind=Kind.COMPLETION,
            arguments=fixed | {"kv_cache_memory_bytes": 64 << 20} | arguments,
            weights=weights,
            objects=objects,
        )
    )
    print("ready", flush=True)
    body = workload.body("order customer refund", "completion", 4)
    engine.submit(0, Request(index=0, custom_id="a", url=Kind.COMPLETION.url, body=body | {"model": None}))
    finished: list[Any] = []
    while not finished:
        finished = engine.step()
    answer = orjson.loads(finished[0][1].response or b"{}")
    parts = dict(engine.info.timeline)
    engine.close()
    return {"parts": parts, "answer": answer["choices"][0]["text"]}
