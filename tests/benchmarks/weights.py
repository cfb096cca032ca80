"""Weights from an object store into shared memory and parameters: dray beside the limits, and beside others.

::

    python -m tests.benchmarks.weights --record                2 GB in four files, three rounds
    python -m tests.benchmarks.weights --gigabytes 0.25 --repeats 1 --only memcpy ranged dray runai
    python -m tests.benchmarks.weights --through-vllm          an engine's start instead: process to ready

Every contestant runs in a process of its own, into memory that was not its own before, one after the other;
the rounds are interleaved (A B C A B C ...). The server is on this machine's loopback and shares its cores:
figures are limits of the machine, not of a network. ``--only`` takes families (``runai``) and single
contestants (``runai-16``).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import json
import math
import mmap
import multiprocessing
import os
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from dray.requests import ObjectStoreOptions
from dray.weights.cache import evict
from dray.weights.places import CACHE_VARIABLE, HUGE_VARIABLE, Place, prepare
from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, number, say, spread
from tests.support.s3_emulator import EmulatorProcess

BUCKET, PREFIX = "bucket", "models/m"
URI = f"s3://{BUCKET}/{PREFIX}"
RANGE = 8 << 20  # bytes of one request, everybody's
SHARED = Path("/dev/shm")
PEERS = Path(".build/benchmarks/peers")
RUNAI = ("runai-model-streamer==0.17.0", "runai-model-streamer-s3==0.17.1")
SHARE_OF_SINK = 0.8  # what is asked of dray, checksums and all
_WARMED = 2.5  # times the model: what a contestant may touch, at most
_LAYER = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
_LAYER_BYTES = 121.6e6


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
        warm(int(_WARMED * sum(path.stat().st_size for path in work.files)))
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
        meter.stop(_size(folder))
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
    prepare(Place(root=Path(work.memory), memory=True))
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


def _size(folder: Path) -> int:
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
    from dray.engine.vllm_engine import VllmEngine
    from dray.requests.model import Kind, Request

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


# -- the rounds ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Something to measure: a function of this module with settings, in an environment.

    ``best_of``: the family whose best setting so far it takes. ``behaviour`` is the server's meanwhile.
    """

    name: str
    family: str
    function: str
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    behaviour: dict[str, Any] = field(default_factory=dict)
    tls: bool = False
    best_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run; ``cpu`` counts processor seconds with all children, ``served`` bytes that the server sent."""

    name: str
    family: str
    seconds: float
    cpu: float
    bytes: int
    served: int
    parts: dict[str, Any]

    @property
    def rate(self) -> float:
        """Bytes/s."""
        return self.bytes / self.seconds


def contestants() -> list[Contestant]:
    """Everybody, in the order of a round."""
    small = {HUGE_VARIABLE: "0"}
    shapes = [{"processes": 2, "threads": threads} for threads in (2, 4)]
    found = [
        Contestant(name="memcpy", family="memcpy", function="memcpy"),
        Contestant(name="memcpy-4k", family="memcpy-4k", function="memcpy", environment=small),
        *_variants("sink", "sink", shapes),
        *_variants("ranged", "ranged", shapes),
        Contestant(name="dray", family="dray", function="dray"),
        Contestant(name="dray-4k", family="dray-4k", function="dray", environment=small),
        *_variants("ranged-tls", "ranged", shapes, tls=True),
        Contestant(name="dray-tls", family="dray-tls", function="dray", tls=True),
        *(_runai_contestant(f"runai-{count}", count) for count in (1, 4, 8, 16, 32)),
        _runai_contestant("runai-1-of-16", 1, 2 * RANGE),
        *_variants("obstore", "obstore", [{"concurrency": count} for count in (4, 8, 16)]),
        *_variants("boto3", "boto3", [{"concurrency": count} for count in (8, 16)]),
    ]
    loads = [("dray-load", None), ("runai-load", "runai"), ("boto3-load", "boto3")]
    return found + [
        Contestant(name=name, family=name, function=name.replace("-", "_"), best_of=best)
        for name, best in loads
    ]


def _variants(family: str, function: str, settings: list[dict[str, Any]], **more: Any) -> list[Contestant]:
    return [
        Contestant(
            name=f"{family}-{'x'.join(map(str, one.values()))}",
            family=family,
            function=function,
            settings=one,
            **more,
        )
        for one in settings
    ]


def _runai_contestant(name: str, concurrency: int, chunk: int = RANGE) -> Contestant:
    environment = runai_environment(concurrency, chunk)
    return Contestant(name=name, family="runai", function="runai", environment=environment)


def runai_environment(concurrency: int, chunk: int = RANGE) -> dict[str, str]:
    """The streamer's settings for a store like the emulator; ``chunk`` in bytes."""
    return {
        "RUNAI_STREAMER_CONCURRENCY": str(concurrency),
        "RUNAI_STREAMER_MEMORY_LIMIT": "-1",
        "RUNAI_STREAMER_CHUNK_BYTESIZE": str(chunk),
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }


class Bench:
    """The servers, the folders, and how one contestant is run."""

    def __init__(self, folder: Path, gigabytes: float, files: int, timeout: float) -> None:
        self.folder = folder
        self.timeout = timeout
        self._gigabytes, self._files = gigabytes, files
        self._stack = ExitStack()
        self._servers: dict[bool, EmulatorProcess] = {}

    def __enter__(self) -> Bench:
        try:
            shared = tempfile.TemporaryDirectory(dir=SHARED, prefix="dray-bench-")
            self.root = Path(self._stack.enter_context(shared))
            self.memory = SHARED / f"{self.root.name}-memory"
            self._stack.callback(clear, self.memory)
            self.origin = self.root / BUCKET / PREFIX
            say(f"writing {self._gigabytes:g} GB")
            write_model(self.origin, self._gigabytes, self._files)
        except BaseException:
            self._stack.close()
            raise
        self.size = _size(self.origin)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def server(self, *, tls: bool = False) -> EmulatorProcess:
        """The one that speaks TLS, or the plain one; started at its first use."""
        if tls not in self._servers:
            # Two processes: no contestant waits because one thread of Python serves them all.
            self._servers[tls] = EmulatorProcess(self.root, processes=2, tls=tls)
            self._stack.callback(self._servers[tls].stop)
        return self._servers[tls]

    def run(self, contestant: Contestant) -> Measure:
        """Measure it once.

        Raises:
            RunError: it failed.
        """
        server = self.server(tls=contestant.tls)
        server.behave(**contestant.behaviour)
        disk = self.folder / "disk"
        disk.mkdir()
        work = Work(
            origin=str(self.origin),
            url=server.url,
            uri=URI,
            memory=str(self.memory),
            disk=str(disk),
            settings=contestant.settings,
        )
        path = self.folder / "work.json"
        path.write_bytes(orjson.dumps(asdict(work)))
        command = [sys.executable, "-m", "tests.benchmarks.weights", "--contestant", contestant.function]
        if contestant.function.startswith("vllm"):
            warm(int(_WARMED * self.size))  # the others do it themselves
        environment = self._environment(server, contestant)
        try:
            done = processes.run([*command, "--work", path], timeout=self.timeout, environment=environment)
            figures = done.result()
            ready = next((line.seconds for line in done.out if line.text == "ready"), None)
        finally:
            shutil.rmtree(disk)
            clear(self.memory)
        served = sum(size for name, size in server.served().items() if name.endswith(".safetensors"))
        return _measure(contestant, figures, ready, served, self.size)

    def _environment(self, server: EmulatorProcess, contestant: Contestant) -> dict[str, str]:
        found = workload.isolated(self.folder / "prefect") | {
            CACHE_VARIABLE: str(self.memory),
            "XDG_CACHE_HOME": str(self.folder / "cache"),  # what engines keep there is warm from the 2nd on
            "VLLM_ASSETS_CACHE": str(self.folder / "disk"),
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        found["PYTHONPATH"] += f":{PEERS.absolute()}"
        if contestant.tls:
            found |= dict.fromkeys(("SSL_CERT_FILE", "AWS_CA_BUNDLE"), str(server.certificate))
        return found | contestant.environment


def _measure(
    contestant: Contestant, figures: dict[str, Any], ready: float | None, served: int, size: int
) -> Measure:
    """``ready`` counts from the start of the process, and then nothing else does."""
    if ready is None and figures["bytes"] < 0.999 * size:  # headers do not count with everybody
        raise RunError(f"{figures['bytes']:,} bytes, of a model of {size:,}")
    known = ("seconds", "cpu", "bytes")
    return Measure(
        name=contestant.name,
        family=contestant.family,
        seconds=figures["seconds"] if ready is None else ready,
        cpu=figures.get("cpu", 0.0),
        bytes=size,
        served=served,
        parts={name: value for name, value in figures.items() if name not in known},
    )


def clear(memory: Path) -> None:
    """Nothing stays of what a contestant left in shared memory: no file, no mount."""
    if not memory.is_dir():
        return
    shutil.rmtree(memory / "sink", ignore_errors=True)
    evict(Place(root=memory, memory=True))
    while os.path.ismount(memory):  # somebody may still look at it, or have mounted there too
        subprocess.run(["umount", "--lazy", str(memory)], check=True)
    shutil.rmtree(memory, ignore_errors=True)


def write_model(folder: Path, gigabytes: float, files: int) -> Path:
    """A Llama of about that size in bfloat16 with a tokenizer, and its published manifest."""
    from dray.weights.publish import publish
    from tests.support.checkpoints import Stored, _llama_shapes, write_shards
    from tests.support.tiny_model import write_tiny_model

    write_tiny_model(folder)
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    layers = max(1, round(gigabytes * 1e9 / _LAYER_BYTES))
    config |= _LAYER | {"head_dim": 64, "num_hidden_layers": layers, "dtype": "bfloat16"}
    config |= {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    block, shards, at = _numbers(), [{} for _ in range(files)], 0  # type: ignore[var-annotated]
    shapes = _llama_shapes(config)
    total = 2 * sum(map(math.prod, shapes.values()))
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        data = (block * (size // len(block) + 1))[:size]
        shards[min(at * files // total, files - 1)][name] = Stored("BF16", shape, data)
        at += size
    write_shards(folder, shards)
    publish(str(folder))
    return folder


def _numbers() -> bytes:
    """Two million small weights in bfloat16, the upper half of a float32."""
    import numpy as np

    numbers = np.random.default_rng(0).normal(0, 0.02, 1 << 21).astype(np.float32)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def install_peers() -> None:
    """Run:ai's streamer, where the environment does not have it."""
    known = importlib.util.find_spec("runai_model_streamer")
    if known is None and not (PEERS / "runai_model_streamer").is_dir():
        command = [sys.executable, "-m", "uv", "pip", "install", "--compile-bytecode", "--no-deps"]
        subprocess.run([*command, "--target", str(PEERS), *RUNAI], check=True)


def main() -> int:
    """Measure as the arguments say; or, with ``--contestant``, be measured."""
    arguments = _parse()
    if arguments.contestant:
        work = Work(**orjson.loads(arguments.work.read_bytes()))
        print(orjson.dumps(CONTESTANTS[arguments.contestant](work)).decode(), flush=True)
        return 0
    engines = arguments.through_vllm
    chosen = _engines(arguments.concurrency) if engines else _chosen(arguments.only)
    if any("runai" in one.name for one in chosen):
        install_peers()
    report = Report(name="weights-vllm" if engines else "weights")
    with (
        workload.workspace(arguments.folder) as folder,
        Bench(folder, arguments.gigabytes, arguments.files, arguments.timeout) as bench,
    ):
        measures = rounds(bench, chosen, arguments.repeats, report)
    report.raw = [asdict(measure) for measure in measures]
    (_report_engines if engines else _report_ladder)(report, measures)
    return results.publish(report, arguments)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--gigabytes", type=float, default=None, help="of the model (2)")
    parser.add_argument("--files", type=int, default=4, help="that the model is in")
    parser.add_argument("--only", nargs="+", default=None, help="contestants, or families of them")
    parser.add_argument(
        "--through-vllm", action="store_true", help="an engine's start, beside vLLM's own way"
    )
    parser.add_argument("--concurrency", type=int, default=1, help="of Run:ai's streamer through vLLM")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one process may take")
    parser.add_argument("--contestant", choices=sorted(CONTESTANTS), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.gigabytes = arguments.gigabytes or (0.25 if arguments.quick else 2.0)
    return arguments


def _chosen(names: Sequence[str] | None) -> list[Contestant]:
    found = [one for one in contestants() if names is None or {one.name, one.family} & set(names)]
    unknown = set(names or ()) - {name for one in found for name in (one.name, one.family)}
    if unknown:
        sys.exit(f"no contestant {', '.join(sorted(unknown))}")
    return found


def _engines(concurrency: int) -> list[Contestant]:
    return [
        engine("vllm-dray"),
        engine("vllm-runai", environment=runai_environment(concurrency)),
        engine("vllm-local"),
    ]


def engine(name: str, **more: Any) -> Contestant:
    """One of the engines."""
    return Contestant(name=name, family=name, function=name.replace("-", "_"), **more)


def rounds(bench: Bench, chosen: Sequence[Contestant], repeats: int, report: Report) -> list[Measure]:
    """Everybody in turn, as often as asked."""
    measures: list[Measure] = []
    if any(one.function.startswith("vllm") for one in chosen):
        say("an engine that does not count: it fills vLLM's own caches")
        bench.run(engine("vllm-local"))
    for repeat in range(repeats):
        for contestant in chosen:
            label = f"round {repeat + 1}: {contestant.name}"
            try:
                measures.append(bench.run(_set(contestant, measures)))
            except RunError as error:
                report.failures.append(f"{label}: {error}")
                say(f"{label}: FAILED")
                continue
            one = measures[-1]
            say(f"{label}: {one.seconds:.2f} s, {one.rate / 1e9:.2f} GB/s, {one.cpu:.2f} CPU s")
    return measures


def _set(contestant: Contestant, measures: Sequence[Measure]) -> Contestant:
    """The contestant with the settings that were best so far, where it takes those of a family."""
    if contestant.best_of is None:
        return contestant
    family = [one for one in contestants() if one.family == contestant.best_of]
    best = _best(measures, contestant.best_of)
    model = next((one for one in family if one.name == best), family[len(family) // 2])
    return replace(contestant, settings=model.settings, environment=model.environment)


def _best(measures: Sequence[Measure], family: str) -> str | None:
    """The name of the family's fastest, by medians."""
    rates = {name: median(found) for name, found in _rates(measures, family).items()}
    return max(rates, key=lambda name: rates[name]) if rates else None


def _rates(measures: Sequence[Measure], family: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for one in measures:
        if one.family == family:
            found[one.name].append(one.rate)
    return found


# -- what is said of it ----------------------------------------------------------------------------

_WHAT = {
    "memcpy": "memcpy into fresh shared memory, a thread for each core",
    "memcpy-4k": "the same on a mount with 4 KiB pages",
    "sink": "raw sink: ranges received and thrown away",
    "ranged": "ranged sink: received into fresh shared memory, no checks",
    "dray": "dray, whole: checksums of the published manifest",
    "dray-4k": "the same on a mount with 4 KiB pages",
    "ranged-tls": "ranged sink over TLS",
    "dray-tls": "dray over TLS",
    "runai": "Run:ai streamer, tensors dropped",
    "obstore": "obstore, ranges into one buffer",
    "boto3": "boto3 to disk, then load_file (maps the files)",
    "dray-load": "dray and its loader, into parameters",
    "runai-load": "Run:ai streamer as vLLM uses it, into parameters",
    "boto3-load": "boto3 to disk and load_file, into parameters",
}


def _report_ladder(report: Report, measures: Sequence[Measure]) -> None:
    families = [family for family in _WHAT if _rates(measures, family)]
    limit = _rate(measures, "ranged")
    rows = [_row(measures, family, limit) for family in families]
    header = ("what", "GB/s", "of the ranged sink", "CPU s/GB", "sent / model", "best setting", "runs")
    report.tables = [Table(title=_title(measures), header=header, rows=rows)]
    several = [(f, n) for f in families for n in _rates(measures, f) if len(_rates(measures, f)) > 1]
    settings = [
        [name, spread(_each(measures, name, "rate", 1e-9)), _cpu(measures, name)] for _, name in several
    ]
    if settings:
        report.tables.append(Table(title="All settings", header=("what", "GB/s", "CPU s/GB"), rows=settings))
    loads = [family for family in families if family.endswith("-load")]
    first = [[_WHAT[f], spread([m.parts["first"] for m in measures if m.family == f])] for f in loads]
    if first:
        report.tables.append(
            Table(title="Into parameters", header=("what", "first tensor after, s"), rows=first)
        )
    report.targets = _targets(measures)
    report.notes = [*_NOTES, _versions()]


def _row(measures: Sequence[Measure], family: str, limit: float) -> list[str]:
    name = _best(measures, family) or family
    runs = [one for one in measures if one.name == name]
    return [
        _WHAT[family],
        spread(_each(measures, name, "rate", 1e-9)),
        number(median([one.rate for one in runs]) / limit) if limit else "-",
        _cpu(measures, name),
        number(max(one.served / one.bytes for one in runs)),
        name.removeprefix(f"{family}-") if name != family else "",
        str(len(runs)),
    ]


def _rate(measures: Sequence[Measure], family: str) -> float:
    """The median of the family's fastest, in bytes/s; 0 where it did not run."""
    name = _best(measures, family)
    return median(_rates(measures, family)[name]) if name else 0.0


def _each(measures: Sequence[Measure], name: str, figure: str, factor: float = 1.0) -> list[float]:
    return [getattr(one, figure) * factor for one in measures if one.name == name]


def _cpu(measures: Sequence[Measure], name: str) -> str:
    return spread([one.cpu / one.bytes * 1e9 for one in measures if one.name == name])


def _title(measures: Sequence[Measure]) -> str:
    return f"{measures[0].bytes / 1e9:.2f} GB over loopback" if measures else "nothing was measured"


def _targets(measures: Sequence[Measure]) -> list[Target]:
    asked = [
        ("dray / ranged sink", "dray", "ranged", SHARE_OF_SINK),
        ("dray over TLS / ranged sink over TLS", "dray-tls", "ranged-tls", None),
        ("dray into parameters / ranged sink", "dray-load", "ranged", None),
        ("dray / Run:ai streamer", "dray", "runai", None),
        ("dray into parameters / Run:ai streamer as vLLM uses it", "dray-load", "runai-load", None),
        ("dray into parameters / boto3 and load_file", "dray-load", "boto3-load", None),
    ]
    return [
        Target(name=name, value=_rate(measures, above) / _rate(measures, below), bound=bound)
        for name, above, below, bound in asked
        if _rate(measures, above) and _rate(measures, below)
    ]


_NOTES = [
    "Figures are medians, with min..max over the rounds; rounds are interleaved, each run is a process of "
    "its own, and ratios are of medians. Of several settings the one with the fastest median counts.",
    "The emulator serves from /dev/shm with two processes on the same cores: its own work is in nobody's CPU "
    "seconds, but in everybody's seconds. CPU seconds are user and system time, child processes included. "
    "Listing and imports are in neither; requests for headers, and the start of dray's fetch processes, are.",
    "Memory is new to each contestant, but not to this machine: each touches as much and frees it before the "
    "clock starts, since a virtual machine's host may take seconds a GB to hand out memory again.",
    "Fresh shared memory is what dray uses: a tmpfs of its own with huge pages where it may mount one.",
    "The sinks are 2 processes with 2 or 4 threads, raw sockets, ranges of 8 MiB. Run:ai: concurrency 1 to "
    "32, chunks of 8 MiB (and 16), memory unlimited. obstore: ranges of 8 MiB, 4 to 16 at once, into fresh "
    "private memory. boto3: `max_concurrency` 8 and 16, parts of 8 MiB, one file after the other.",
    "Into parameters: every tensor is copied into an empty parameter, as vLLM's load on CPU does; Run:ai's "
    "are cloned before, as its adapter in vLLM does, at the setting that was best in the rounds so far.",
]


def _versions() -> str:
    names = ("obstore", "boto3", "safetensors", "blake3")
    return ", ".join([*RUNAI, *(f"{name}=={importlib.metadata.version(name)}" for name in names)]) + "."


def _report_engines(report: Report, measures: Sequence[Measure]) -> None:
    names = list(dict.fromkeys(one.name for one in measures))
    parts = list(dict.fromkeys(part for one in measures for part in one.parts["parts"]))
    rows = [
        [
            _ENGINES[name],
            spread(_each(measures, name, "seconds")),
            *[
                spread([one.parts["parts"].get(part, 0.0) for one in measures if one.name == name])
                for part in parts
            ],
            number(max(one.served / one.bytes for one in measures if one.name == name)),
        ]
        for name in names
    ]
    header = ("what", "from process start to ready, s", *parts, "sent / model")
    size = f"{measures[0].bytes / 1e9:.2f} GB" if measures else ""
    report.tables = [Table(title=f"An engine's start with a model of {size}", header=header, rows=rows)]
    answers = {one.parts["answer"] for one in measures}
    if len(answers) > 1:
        report.failures.append(f"the engines answer differently: {sorted(answers)}")
    report.targets = [
        Target(
            name=f"ready with dray / {_ENGINES[name]}",
            value=median(_each(measures, "vllm-dray", "seconds")) / median(_each(measures, name, "seconds")),
            at_least=False,
        )
        for name in names
        if name != "vllm-dray" and "vllm-dray" in names
    ]
    report.notes = [
        "Medians with min..max of interleaved rounds. All have the same engine arguments (CPU, in process, "
        "eager, bfloat16, 256 tokens of context, 64 MiB of key-value cache), a process of their own, and "
        "nothing of the model on the node before; then all answered the same prompt, alike.",
        "Run:ai through vLLM: `load_format=runai_streamer`, `model=s3://...`, chunks of 8 MiB, memory "
        f"unlimited ({', '.join(RUNAI)}).",
    ]


_ENGINES = {
    "vllm-dray": "dray",
    "vllm-runai": "vLLM with Run:ai",
    "vllm-local": "a local folder in memory",
}


if __name__ == "__main__":
    sys.exit(main())
