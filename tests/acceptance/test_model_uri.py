"""A model in an object store: the answers of its directory, and one read for all replicas of a node."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import ROOT, Command, Ended, run_arguments
from tests.support.s3_emulator import EmulatorProcess

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

MODEL = ROOT / "examples/tickets/model"
TICKETS = ROOT / "examples/tickets/requests.jsonl"
WEIGHTS = "bucket/models/model/model.safetensors"
HEADER_READS = 2 * (128 << 10)  # the driver judges the headers twice before it starts anything


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    root = tmp_path_factory.mktemp("origin")
    shutil.copytree(MODEL, root / "bucket/models/model")
    server = EmulatorProcess(root)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("requests") / "in.jsonl"
    path.write_bytes(b"".join(TICKETS.read_bytes().splitlines(keepends=True)[:60]))
    return path


def _run(store: EmulatorProcess, requests: Path, folder: Path, model: str, cache: Path, *more: str) -> Ended:
    environment = {
        "AWS_ENDPOINT_URL": store.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "DRAY_MODEL_CACHE": str(cache),
    }
    arguments = run_arguments(requests, folder / "out", *more, engine="vllm", model=model)
    return Command(arguments=arguments, folder=folder, environment=environment).wait(300)


@pytest.mark.heavy
def test_two_replicas_one_read_the_same_answers(
    store: EmulatorProcess, requests: Path, tmp_path: Path
) -> None:
    pytest.importorskip("vllm")
    cache = tmp_path / "cache"
    store.behave()
    far = _run(store, requests, tmp_path / "far", "s3://bucket/models/model", cache, "--replicas", "2")
    assert far.code == 0, far.stderr
    size = (MODEL / "model.safetensors").stat().st_size
    assert size <= store.served()[WEIGHTS] <= size + HEADER_READS
    assert far.json["seconds"]["weights"] > 0
    near = _run(store, requests, tmp_path / "near", str(MODEL), cache)
    assert near.code == 0, near.stderr
    output = (tmp_path / "far/out/output.jsonl").read_bytes()
    assert output == (tmp_path / "near/out/output.jsonl").read_bytes()
    assert output.count(b"\n") == 60


@pytest.mark.heavy(one_of=9)
def test_a_damaged_model_is_refused_before_anything_starts(
    store: EmulatorProcess, requests: Path, tmp_path: Path
) -> None:
    weights = store.root / WEIGHTS
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    try:
        refused = _run(store, requests, tmp_path, "s3://bucket/models/model", tmp_path / "cache")
    finally:
        weights.write_bytes(whole)
    assert refused.code == 2
    assert "s3://bucket/models/model/model.safetensors: truncated: tensors take" in refused.stderr
    assert "Ray" not in refused.stderr
    assert not (tmp_path / "cache").exists()
