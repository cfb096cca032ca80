"""Inputs, spool and outputs on an object store, against a real S3 server."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import itertools
import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from pyarrow import parquet

from dray.errors import ConfigError, InputError, JobFailedError
from dray.kinds import Kind
from dray.requests.ingest import cut, ingest
from dray.requests.model import Outcome
from dray.requests.outputs.files import write_outputs
from dray.requests.reading.inputs import digest, expand
from dray.requests.reading.tables import file_rows
from dray.requests.sources import Rows
from dray.requests.spool.spool import decode, index_of, read_shard
from dray.storage import ObjectStoreOptions, check_writable, objects, remote, seekable
from dray.storage.files import stream_range, write_atomic
from tests.support.s3 import S3Server
from tests.support.sources import source_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.integration


@pytest.fixture
def options(server: S3Server) -> ObjectStoreOptions:
    return server.options


def rows(*numbers: int) -> bytes:
    return b"".join(
        json.dumps(
            {"custom_id": f"r{n}", "url": "/v1/chat/completions", "body": {"messages": [], "n": n}}
        ).encode()
        + b"\n"
        for n in numbers
    )


def keys(client: S3Client, bucket: str) -> list[str]:
    return [item["Key"] for item in client.list_objects_v2(Bucket=bucket).get("Contents", [])]


def test_globs_list_objects(bucket: str, client: S3Client, options: ObjectStoreOptions) -> None:
    for key in ("in/b.jsonl", "in/a b#1.jsonl", "in/c.csv", "in/deep/d.jsonl", "top.jsonl"):
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())

    def found(*patterns: str) -> list[str]:
        refs = expand([f"s3://{bucket}/{pattern}" for pattern in patterns], options=options)
        assert all(ref.version for ref in refs)
        return [ref.uri.removeprefix(f"s3://{bucket}/") for ref in refs]

    assert found("in/*.jsonl") == ["in/a b#1.jsonl", "in/b.jsonl"]
    assert found("**/*.jsonl") == ["in/a b#1.jsonl", "in/b.jsonl", "in/deep/d.jsonl", "top.jsonl"]
    assert found("top.jsonl", "i?/[ab]*.jsonl") == ["top.jsonl", "in/a b#1.jsonl", "in/b.jsonl"]


def test_globs_look_only_where_they_may_match(
    bucket: str, client: S3Client, options: ObjectStoreOptions
) -> None:
    """``other//odd`` is a name that obstore cannot read; it is none of these patterns' business."""
    named = ("day=1/in.jsonl", "day=2/in.jsonl", "day=2/deep/in.jsonl", "top.jsonl", "file[1].jsonl")
    for key in (*named, "other//odd.jsonl"):
        client.put_object(Bucket=bucket, Key=key, Body=rows(1))

    def found(pattern: str) -> list[str]:
        refs = expand([f"s3://{bucket}/{pattern}"], options=options)
        return [ref.uri.removeprefix(f"s3://{bucket}/") for ref in refs]

    assert found("day=*/in.jsonl") == ["day=1/in.jsonl", "day=2/in.jsonl"]
    assert found("day=*/*/*.jsonl") == ["day=2/deep/in.jsonl"]
    assert found("*.jsonl") == ["file[1].jsonl", "top.jsonl"]
    assert found("day=2/**") == ["day=2/deep/in.jsonl", "day=2/in.jsonl"]
    assert found("file[1].jsonl") == ["file[1].jsonl"]  # its own name, and no pattern
    with pytest.raises(InputError, match="the pattern cannot be read"):
        found("[z-a].jsonl")


def test_markers_of_folders_are_no_files(bucket: str, client: S3Client, options: ObjectStoreOptions) -> None:
    """As Spark, Hadoop and S3's console write them: empty objects whose names end in a slash."""
    parts = ("t/out.jsonl/part-0.jsonl", "t/out.jsonl/part-1.jsonl")
    for key in ("t/", "t/out.jsonl/", *parts, "t/none.jsonl/"):
        client.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith(("/", "1.jsonl")) else rows(1))

    def found(pattern: str) -> list[str]:
        refs = expand([f"s3://{bucket}/{pattern}"], options=options)
        return [ref.uri.removeprefix(f"s3://{bucket}/") for ref in refs]

    assert found("t/**/*.jsonl") == [*parts]  # the second one is empty, and a file
    assert found("**") == [*parts]
    assert found("t/*/*.jsonl") == [*parts]
    for pattern in ("t/*.jsonl", "t/n**"):
        with pytest.raises(InputError, match=r"no object"):
            found(pattern)
    client.put_object(Bucket=bucket, Key="t/none.jsonl", Body=b"")  # beside the marker of that name
    assert found("t/*.jsonl") == found("t/n**") == ["t/none.jsonl"]


@pytest.mark.parametrize("name", ["gone.jsonl", "gone/*.jsonl", "in/"])
def test_missing_objects_are_refused_by_name(bucket: str, options: ObjectStoreOptions, name: str) -> None:
    uri = f"s3://{bucket}/{name}"
    with pytest.raises(InputError) as caught:
        expand([uri], options=options)
    assert [(problem.code, problem.file) for problem in caught.value.problems] == [("missing_input", uri)]


def test_wrong_keys_are_refused_without_showing_them(options: ObjectStoreOptions) -> None:
    wrong = ObjectStoreOptions(
        endpoint="http://127.0.0.1:9",
        region="x",
        access_key_id="k",
        secret_access_key="hush",
        allow_http=True,
        extra=(("skip_signature", "false"),),
    )
    with pytest.raises(InputError) as caught:
        expand(["s3://bucket/x.jsonl"], options=wrong)
    assert [problem.code for problem in caught.value.problems] == ["unreadable_input"]
    assert "hush" not in str(caught.value)


def test_a_job_may_live_on_the_store_alone(
    bucket: str, client: S3Client, options: ObjectStoreOptions
) -> None:
    client.put_object(Bucket=bucket, Key="in/1.jsonl", Body=rows(*range(500)))
    client.put_object(
        Bucket=bucket, Key="in/2.jsonl.gz", Body=gzip.compress(rows(*range(500, 800)) + b"oops\n")
    )
    ingested = ingest(
        source_of(f"s3://{bucket}/in/*.jsonl*"),
        spool_uri=f"s3://{bucket}/job/spool.jsonl",
        skip_invalid=True,
        options=options,
    )
    ranges = cut(ingested, target_rows=90)
    found = [
        [index_of(line) for chunk in read_shard(r.uri, r.offset, r.length, options=options) for line in chunk]
        for r in ranges
    ]
    assert list(itertools.chain(*found)) == list(range(800))
    assert [len(part) for part in found] == [r.rows for r in ranges]
    assert [o.index for page in ingested.rejects() for o in page] == [800]
    last = next(iter(read_shard(ranges[-1].uri, ranges[-1].offset, ranges[-1].length, options=options)))[0]
    assert decode(last).body["n"] == ranges[-1].first_position

    pages = [[Outcome(n, f"r{n}", b"{}")] for n in range(3)]
    written = write_outputs(pages, directory=f"s3://{bucket}/out", options=options)
    body = client.get_object(Bucket=bucket, Key="out/output.jsonl")["Body"].read()
    assert hashlib.sha256(body).hexdigest() == written.output.sha256
    assert keys(client, bucket) == [
        "in/1.jsonl",
        "in/2.jsonl.gz",
        "job/spool.jsonl",
        "job/spool.jsonl.rejects",
        "out/errors.jsonl",
        "out/output.jsonl",
    ]


def test_refused_input_leaves_nothing_on_the_store(
    bucket: str, client: S3Client, options: ObjectStoreOptions
) -> None:
    client.put_object(Bucket=bucket, Key="in.jsonl", Body=rows(1, 1))
    uri = f"s3://{bucket}/in.jsonl"
    with pytest.raises(InputError) as caught:
        ingest(source_of(uri), spool_uri=f"s3://{bucket}/spool.jsonl", options=options)
    [problem] = caught.value.problems
    assert (problem.code, problem.file, problem.line) == ("duplicate_custom_id", uri, 2)
    assert f"{uri}:1" in problem.message
    assert keys(client, bucket) == ["in.jsonl"]


def test_big_uploads_go_in_parts_and_can_be_read_by_range(
    bucket: str, client: S3Client, options: ObjectStoreOptions
) -> None:
    block = os.urandom(1 << 20)
    uri = f"s3://{bucket}/big"
    with write_atomic(uri, options=options) as file:
        for _ in range(40):
            file.write(block)
    assert client.head_object(Bucket=bucket, Key="big")["ETag"].endswith('-5"')  # parts of 8 MiB
    assert b"".join(stream_range(uri, (20 << 20) + 5, 100, options=options)) == block[5:105]
    assert b"".join(stream_range(uri, (40 << 20) - 3, 100, options=options)) == block[-3:]
    assert b"".join(stream_range(uri, 7, 0, options=options)) == b""
    with pytest.raises(KeyError), write_atomic(f"s3://{bucket}/half", options=options) as file:
        file.write(block)
        raise KeyError
    assert keys(client, bucket) == ["big"]
    assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_parquet_in_and_out(
    bucket: str, client: S3Client, options: ObjectStoreOptions, tmp_path: Path
) -> None:
    parquet.write_table(
        pyarrow.table({"text": [f"t{n}" for n in range(5000)]}), tmp_path / "x", row_group_size=700
    )
    client.upload_file(str(tmp_path / "x"), bucket, "in.parquet")
    source = source_of(f"s3://{bucket}/in.parquet", kind=Kind.COMPLETION, prompt_column="text")
    ingested = ingest(source, spool_uri=str(tmp_path / "spool"), options=options)
    [part] = cut(ingested, target_rows=5000)
    lines = [line for chunk in read_shard(part.uri, part.offset, part.length) for line in chunk]
    assert [decode(line).body["prompt"] for line in lines] == [f"t{n}" for n in range(5000)]
    write_outputs(
        [[Outcome(0, "a", b"{}")]], directory=f"s3://{bucket}/out", format="parquet", options=options
    )
    client.download_file(bucket, "out/output.parquet", str(tmp_path / "y"))
    assert parquet.read_table(tmp_path / "y").column("custom_id").to_pylist() == ["a"]


@pytest.mark.parametrize(("rows", "part"), [(8192, objects.PART_BYTES), (1024, 1 << 20)])
def test_a_large_row_group_is_read_in_short_requests(
    bucket: str,
    client: S3Client,
    options: ObjectStoreOptions,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    part: int,
) -> None:
    """Also where one page, of 4 MB here, is larger than a request."""
    asked: list[int] = []

    def counted(uri: str, start: int, end: int, **how: Any) -> bytes:
        asked.append(end - start)
        return objects.read_range(uri, start, end, **how)

    monkeypatch.setattr(seekable, "read_range", counted)
    monkeypatch.setattr(seekable, "PART_BYTES", part)
    images = [number.to_bytes(4, "big") * 1024 for number in range(rows)]
    written = pyarrow.BufferOutputStream()
    table = pyarrow.table({"q": ["what?"] * rows, "image": images})
    parquet.write_table(table, written, compression="none", use_dictionary=False)
    client.put_object(Bucket=bucket, Key="in.parquet", Body=written.getvalue().to_pybytes())
    uri = f"s3://{bucket}/in.parquet"
    source = source_of(uri, prompt_column="q", image_column="image")
    assert isinstance(source, Rows)
    found = file_rows(uri, source, 1 << 24, options)
    first = next(found)[1]
    assert sum(asked) < 12 << 20  # of 32 MB: a part, and the file's end
    assert max(asked) <= part
    read = [row["image"] for row in (first, *(row for _, row in found)) if isinstance(row, dict)]
    assert read == images
    assert max(asked) <= part


def test_digest_is_of_the_version_and_changes_with_it(
    bucket: str, client: S3Client, options: ObjectStoreOptions
) -> None:
    def current() -> str:
        return digest(expand([f"s3://{bucket}/x.jsonl"], options=options), options=options)

    client.put_object(Bucket=bucket, Key="x.jsonl", Body=b"1")
    before = current()
    assert current() == before
    client.put_object(Bucket=bucket, Key="x.jsonl", Body=b"2")
    assert current() != before


def test_a_damaged_object_is_refused_by_name(
    bucket: str, client: S3Client, options: ObjectStoreOptions, tmp_path: Path
) -> None:
    client.put_object(Bucket=bucket, Key="x.jsonl.gz", Body=gzip.compress(rows(*range(100)))[:-9])
    uri = f"s3://{bucket}/x.jsonl.gz"
    with pytest.raises(InputError) as caught:
        ingest(source_of(uri), spool_uri=str(tmp_path / "spool"), options=options)
    assert [(p.code, p.file) for p in caught.value.problems] == [("unreadable_compression", uri)]


def test_writable_places(bucket: str, client: S3Client, options: ObjectStoreOptions) -> None:
    check_writable(f"s3://{bucket}/out", options=options)
    assert keys(client, bucket) == []
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
    with pytest.raises(ConfigError, match=r"written \(there is no bucket no-such-bucket\)$"):
        check_writable("s3://no-such-bucket/out", options=options)
    with pytest.raises(InputError, match=r"jsonl: there is no bucket no-such-bucket$"):
        expand(["s3://no-such-bucket/*.jsonl"], options=options)


@pytest.mark.parametrize("way", ["variables", "profile"])
def test_credentials_come_from_the_environment(
    server: S3Server, bucket: str, client: S3Client, tmp_path: Path, way: str
) -> None:
    client.put_object(Bucket=bucket, Key="x.jsonl", Body=b"12345")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd()), "HOME": str(tmp_path)}
    environment |= server.environment
    if way == "profile":
        key, secret = (environment.pop(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
        folder = tmp_path / ".aws"
        folder.mkdir()
        text = f"[work]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        (folder / "credentials").write_text(text)
        environment["AWS_PROFILE"] = "work"
    code = (
        f"from dray.requests.reading.inputs import expand; print(expand(['s3://{bucket}/x.jsonl'])[0].size)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("5", 0), done.stderr


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""


def test_http_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(rows(*range(10)))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as web:
        threading.Thread(target=web.serve_forever, args=(0.02,), daemon=True).start()
        uri = f"http://127.0.0.1:{web.server_port}/x.jsonl"
        assert ingest(source_of(uri), spool_uri=str(tmp_path / "spool")).requests == 10
        with pytest.raises(ConfigError):
            check_writable(uri)
        with pytest.raises(InputError) as caught:
            expand([uri.replace("x.", "y.")])
        assert [problem.code for problem in caught.value.problems] == ["missing_input"]
        web.shutdown()


def test_an_object_of_many_parts_is_read_whole(
    bucket: str,
    client: S3Client,
    options: ObjectStoreOptions,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 1000)
    client.put_object(Bucket=bucket, Key="x.jsonl", Body=rows(*range(300)))
    uri = f"s3://{bucket}/x.jsonl"
    ingested = ingest(source_of(uri), spool_uri=f"s3://{bucket}/spool", options=options)
    assert ingested.requests == 300
    parts = cut(ingested, target_rows=100)
    assert [len(c) for p in parts for c in read_shard(p.uri, p.offset, p.length, options=options)] == [
        100
    ] * 3
    monkeypatch.setattr(objects, "PART_BYTES", 1 << 20)
    with pytest.raises(JobFailedError, match="missing"):
        list(read_shard(parts[-1].uri, parts[-1].offset, parts[-1].length + 5, options=options))
    monkeypatch.setattr(remote, "PART_BYTES", 1000)
    blocks = remote.stream(uri, options)
    next(blocks)
    client.put_object(Bucket=bucket, Key="x.jsonl", Body=rows(*range(400)))
    with pytest.raises(OSError, match="replaced while"):
        list(blocks)


@pytest.mark.heavy(one_of=3)
def test_a_parquet_object_that_is_replaced_while_it_is_read_is_refused(
    client: S3Client, bucket: str, options: ObjectStoreOptions
) -> None:
    """Both versions have the same size and rows: nothing but the ETag tells them apart."""

    def version(text: str) -> bytes:
        written = pyarrow.BufferOutputStream()
        prompts = [f"{text} {number:06} {'pad' * 60}" for number in range(30_000)]
        table = pyarrow.table({"prompt": prompts})
        parquet.write_table(table, written, row_group_size=5_000, compression="none", use_dictionary=False)
        return written.getvalue().to_pybytes()

    old, new = version("old"), version("new")
    assert len(old) == len(new)
    client.put_object(Bucket=bucket, Key="in.parquet", Body=old)
    uri = f"s3://{bucket}/in.parquet"
    seen, source = set(), source_of([uri], prompt_column="prompt")
    assert isinstance(source, Rows)
    with pytest.raises(InputError, match="was replaced while it was read"):
        for number, row in file_rows(uri, source, 1 << 24, options):
            assert isinstance(row, dict)
            seen.add(row["prompt"][:3])
            if number == 1:
                client.put_object(Bucket=bucket, Key="in.parquet", Body=new)
    assert seen == {"old"}
