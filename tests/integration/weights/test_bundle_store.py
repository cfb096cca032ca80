"""Cache bundles in an S3 server: one replica saves, the next restores, and no fault stops either."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dray.storage import ObjectStoreOptions
from dray.weights import bundle
from tests.support.s3 import S3Server

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.integration

KEY = "0123456789abcdef" * 4
BUCKET = "bundles"
LOCATION = f"s3://{BUCKET}/team/caches/"
OBJECT = f"team/caches/{KEY}.tar.zst"
BIG = 40 << 20  # bytes that do not compress: several parts up, several ranges down


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        running.bucket(BUCKET)
        yield running


@pytest.fixture
def options(server: S3Server) -> ObjectStoreOptions:
    return server.options


@pytest.fixture
def client(server: S3Server) -> Iterator[S3Client]:
    client = server.client()
    yield client
    client.delete_object(Bucket=BUCKET, Key=OBJECT)


@pytest.fixture
def caches(tmp_path: Path) -> Path:
    folder = tmp_path / "caches"
    (folder / "vllm/modelinfos").mkdir(parents=True)
    (folder / "vllm/modelinfos/llama.json").write_text("{}")
    (folder / "triton").mkdir()
    (folder / "triton/kernel.cubin").write_bytes(np.random.default_rng(5).bytes(BIG))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "node" / KEY


def _same(caches: Path, root: Path) -> bool:
    names = [path.relative_to(caches) for path in caches.rglob("*") if path.is_file()]
    found = {path.relative_to(root) for path in root.rglob("*") if path.is_file()} - {Path(".restored")}
    return set(names) == found and all((caches / n).read_bytes() == (root / n).read_bytes() for n in names)


def test_one_saves_and_the_next_restores(
    client: S3Client, options: ObjectStoreOptions, caches: Path, root: Path, tmp_path: Path
) -> None:
    assert not bundle.restore(LOCATION, KEY, root, options)
    assert bundle.save(LOCATION, KEY, caches, options)
    assert [entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET)["Contents"]] == [OBJECT]
    with ThreadPoolExecutor(2) as pool:  # two nodes
        roots = [root, tmp_path / "other" / KEY]
        assert all(pool.map(lambda folder: bundle.restore(LOCATION, KEY, folder, options), roots))
    assert all(_same(caches, folder) for folder in roots)


def test_the_first_one_stays(client: S3Client, options: ObjectStoreOptions, caches: Path) -> None:
    assert bundle.save(LOCATION, KEY, caches, options)
    before = client.head_object(Bucket=BUCKET, Key=OBJECT)["ETag"]
    (caches / "vllm/modelinfos/llama.json").write_text("changed")
    assert not bundle.save(LOCATION, KEY, caches, options)
    assert client.head_object(Bucket=BUCKET, Key=OBJECT)["ETag"] == before


def test_all_save_at_once_and_one_whole_bundle_remains(
    client: S3Client, options: ObjectStoreOptions, caches: Path, root: Path
) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert any(pool.map(lambda _: bundle.save(LOCATION, KEY, caches, options), range(4)))
    assert bundle.restore(LOCATION, KEY, root, options)
    assert _same(caches, root)


def test_a_damaged_one_is_refused(
    client: S3Client,
    options: ObjectStoreOptions,
    caches: Path,
    root: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert bundle.save(LOCATION, KEY, caches, options)
    whole = client.get_object(Bucket=BUCKET, Key=OBJECT)["Body"].read()
    middle = len(whole) // 2
    for damaged in (whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]):
        client.put_object(Bucket=BUCKET, Key=OBJECT, Body=damaged)
        caplog.clear()
        assert not bundle.restore(LOCATION, KEY, root, options)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert [path.name for path in root.parent.iterdir()] == [f"{KEY}.lock"]


def test_no_store_and_no_bucket(
    options: ObjectStoreOptions, caches: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A start without caches, and nothing of the credentials in the log."""
    gone = replace(options, endpoint="http://127.0.0.1:9", access_key_id="k3y", secret_access_key="s3cr3t")
    assert not bundle.restore(LOCATION, KEY, root, gone)
    for location, chosen in ((LOCATION, gone), ("s3://no-such-bucket/x", options)):
        assert not bundle.save(location, KEY, caches, chosen)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert "k3y" not in caplog.text
    assert "s3cr3t" not in caplog.text
    assert not root.exists()
