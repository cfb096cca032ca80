"""A model in an object store on a cluster of two nodes: the origin is read about once for both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.weights.source.publish import publish
from tests.support.command import ROOT, Command, run_arguments
from tests.support.raylets import Raylets
from tests.support.s3_emulator import EmulatorProcess

pytestmark = [pytest.mark.acceptance, pytest.mark.heavy, pytest.mark.timeout(600)]

MODEL = ROOT / "examples/tickets/model"
TICKETS = ROOT / "examples/tickets/requests.jsonl"
HEADER_READS = 2 * (128 << 10)  # the driver judges the headers before it starts anything
NODES = 2
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}  # what every node has of its own


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    root = tmp_path_factory.mktemp("origin")
    shutil.copytree(MODEL, root / "bucket/models/model")
    publish(str(root / "bucket/models/model"), chunk_bytes=1 << 18)
    server = EmulatorProcess(root)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    found = Raylets(tmp_path_factory.mktemp("raylets"), NODES, KEYS)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("requests") / "in.jsonl"
    path.write_bytes(b"".join(TICKETS.read_bytes().splitlines(keepends=True)[:60]))
    return path


@pytest.fixture(scope="module")
def first(
    store: EmulatorProcess, raylets: Raylets, requests: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bytes, int]:
    """The output of the first job, and the bytes that the origin sent for it."""
    pytest.importorskip("vllm")
    store.behave(connection_rate=2e6, first_byte_seconds=0.01)
    output = _run(store, raylets, requests, tmp_path_factory.mktemp("first"))
    return output, sum(store.served().values())


def test_two_nodes_read_the_origin_about_once(
    store: EmulatorProcess, raylets: Raylets, first: tuple[bytes, int]
) -> None:
    output, served = first
    size = sum(file.stat().st_size for file in (store.root / "bucket/models/model").iterdir())
    print(f"{NODES} nodes: origin served {served / size:.2f} models")
    assert size <= served <= 2.0 * size
    assert output.count(b"\n") == 60
    for node in range(NODES):
        assert [path for path in raylets.cache(node).iterdir() if len(path.name) == 64]


@pytest.mark.long
def test_a_second_job_reads_nothing_of_the_origin(
    store: EmulatorProcess, raylets: Raylets, requests: Path, first: tuple[bytes, int], tmp_path: Path
) -> None:
    store.behave()
    assert _run(store, raylets, requests, tmp_path) == first[0]
    assert store.served().get("bucket/models/model/model.safetensors", 0) <= HEADER_READS


def _run(store: EmulatorProcess, raylets: Raylets, requests: Path, folder: Path) -> bytes:
    environment = {
        **KEYS,
        "AWS_ENDPOINT_URL": store.url,
        "AWS_REGION": "us-east-1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": raylets.settings.auth_token or "",
    }
    assert raylets.settings.address is not None
    more = ("--cluster", raylets.settings.address, "--replicas", str(NODES))
    model = "s3://bucket/models/model"
    arguments = run_arguments(requests, folder / "out", *more, job_id=folder.name, engine="vllm", model=model)
    ended = Command(arguments=arguments, folder=folder, environment=environment).wait(300)
    assert ended.code == 0, ended.stderr
    assert "weights: " in ended.stderr
    return (folder / "out/output.jsonl").read_bytes()
