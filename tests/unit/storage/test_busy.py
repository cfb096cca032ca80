"""An object store that says that it is busy, as S3 does (SlowDown): what is asked for comes all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow
import pytest
from obstore.store import S3Store
from pyarrow import parquet

from dray.errors import InputError, JobFailedError
from dray.requests.reading.inputs import expand
from dray.storage import objects
from dray.storage.faults import BusyError
from dray.storage.files import open_lines, open_seekable, write_atomic
from dray.storage.objects import ObjectStoreOptions
from dray.storage.parts import one_ahead
from tests.support.small_web import Web

pytestmark = pytest.mark.unit

LINES = b'{"a": 1}\n{"a": 2}\n'
TRIES = 3
LISTING = b"""<ListBucketResult><Contents><Key>in.jsonl</Key>
<LastModified>2026-01-01T00:00:00.000Z</LastModified>
<Size>18</Size><ETag>"e"</ETag></Contents></ListBucketResult>"""


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    web = Web()

    def store(root: str, options: ObjectStoreOptions, uploads: bool) -> S3Store:
        """One that asks once: obstore's own retries take seconds."""
        once: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
        signed: Any = {"endpoint": web.url, "region": "r", "skip_signature": True}
        client: Any = {"allow_http": True}
        return S3Store("bucket", client_options=client, retry_config=once, **signed)

    monkeypatch.setattr(objects, "_store", store)
    for place in ("retries", "remote", "seekable", "files"):
        monkeypatch.setattr(f"dray.storage.{place}.PATIENCE", (0.0,) * TRIES)
    for name in ("in.jsonl", "in.parquet"):
        web.headers[f"/bucket/{name}"] = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    web.pages = {"/bucket/in.jsonl": LINES, "/bucket": LISTING}
    yield web
    web.stop()


def busy_at_times(web: Web) -> None:
    """Of four answers three are refusals, with 429 and 503 in turn."""
    web.busy = lambda path: None if web.asked[path] % (TRIES + 1) == 0 else 429 + 74 * (web.asked[path] % 2)


@pytest.mark.parametrize("named", ["in.jsonl", "*.jsonl", "**"])
def test_an_input_is_read_to_its_end(web: Web, named: str) -> None:
    busy_at_times(web)
    [ref] = expand([f"s3://bucket/{named}"])
    assert (ref.uri, ref.size) == ("s3://bucket/in.jsonl", len(LINES))
    assert [line for _, line in open_lines(ref.uri)] == LINES.splitlines()


def test_a_parquet_file_too(web: Web, tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"a": [1, 2]}), tmp_path / "in.parquet")
    web.pages["/bucket/in.parquet"] = (tmp_path / "in.parquet").read_bytes()
    busy_at_times(web)
    with open_seekable("s3://bucket/in.parquet") as file:
        assert parquet.read_table(file).column("a").to_pylist() == [1, 2]


def test_one_that_stays_busy_is_told_in_short(web: Web) -> None:
    web.busy = lambda path: 503
    with pytest.raises(InputError) as caught:
        expand(["s3://bucket/in.jsonl"])
    told = "the file cannot be read: s3://bucket/in.jsonl: the store says 503 Service Unavailable"
    assert [one.message for one in caught.value.problems] == [told]
    assert web.asked["/bucket/in.jsonl"] == TRIES + 1


def test_one_that_does_not_answer_at_first_is_not_waited_for(web: Web) -> None:
    web.stop()
    with pytest.raises(InputError, match="error sending request"):
        expand(["s3://bucket/in.jsonl"])


@pytest.mark.parametrize("failures", [TRIES, TRIES + 1])
def test_an_upload_is_tried_again(monkeypatch: pytest.MonkeyPatch, web: Web, failures: int) -> None:
    tried: list[bytes] = []

    def upload(path: Path, uri: str, options: object) -> None:
        tried.append(path.read_bytes())
        if len(tried) <= failures:
            raise BusyError(f"{uri}: the store says 503 Service Unavailable")

    monkeypatch.setattr(objects, "upload", upload)

    def write() -> None:
        with write_atomic("s3://bucket/spool.jsonl") as file:
            file.write(LINES)

    if failures > TRIES:
        with pytest.raises(JobFailedError, match="the store says 503"):
            write()
    else:
        write()
    assert tried == [LINES] * (TRIES + 1)


def test_parts_come_in_order_and_one_that_hangs_is_left_behind() -> None:
    parts = one_ahead(lambda start, end: bytes(range(start, end)), 0, 25, 10)
    assert [*parts] == [bytes(range(10)), bytes(range(10, 20)), bytes(range(20, 25))]
    assert list(one_ahead(lambda start, end: b"", 5, 5, 10)) == []
    goes_on = threading.Event()
    parts = one_ahead(lambda start, end: b"x" if start == 0 or goes_on.wait(60) else b"", 0, 2, 1)
    assert next(parts) == b"x"
    began = time.monotonic()
    cast("Generator[bytes]", parts).close()
    assert time.monotonic() - began < 5
    goes_on.set()
