"""Keys in a bucket that no path can name, as programs write them by ``f"{prefix}/{name}"``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from dray.errors import InputError
from dray.requests.reading.inputs import expand
from dray.storage import listings
from dray.storage.listings import list_folder, list_under
from dray.weights.source.listing import _folder
from tests.support.s3 import S3Server

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.integration

ODD = ("data//y.jsonl", "data/./y.jsonl", "data/../y.jsonl", "data/a\tb.txt", "data/deep//y.txt", "data/c//")


@pytest.fixture
def found(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """What a pattern names, below ``data``."""
    monkeypatch.setattr(listings, "_told", set())

    def names(pattern: str) -> list[str]:
        refs = expand([f"s3://{bucket}/{pattern}"], options=server.options)
        assert all(ref.version for ref in refs)
        return [ref.uri.removeprefix(f"s3://{bucket}/data/") for ref in refs]

    return names


@pytest.mark.parametrize("odd", ODD)
def test_what_the_pattern_does_not_name_is_left_out_with_one_warning(
    bucket: str,
    client: S3Client,
    found: Callable[[str], list[str]],
    caplog: pytest.LogCaptureFixture,
    odd: str,
) -> None:
    for key in (odd, "data/x.jsonl", "data/deep/x.jsonl", "data/deep/"):
        client.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith("/") else b"{}")
    with caplog.at_level(logging.WARNING):
        assert found("data/*.jsonl") == ["x.jsonl"]
        assert found("data/**/x.jsonl") == ["deep/x.jsonl", "x.jsonl"]
        assert found("data/*/x.jsonl") == ["deep/x.jsonl"]
    warned = [record.getMessage() for record in caplog.records if bucket in record.getMessage()]
    assert len(warned) == 1
    assert "cannot be asked for, and dray leaves them out, such as " in warned[0]
    assert repr(f"s3://{bucket}/{odd}")[1:15] in warned[0]


@pytest.mark.parametrize(
    ("odd", "pattern"),
    [
        ("data/./y.jsonl", "data/**/*.jsonl"),
        ("data//y.jsonl", "data/**"),
        ("data//y.jsonl", "data/**/*.jsonl"),
        ("data/a\tb.jsonl", "data/*.jsonl"),
        ("data/a\tb.jsonl", "data/**/*.jsonl"),
    ],
)
def test_what_the_pattern_names_is_refused_by_name(
    bucket: str, client: S3Client, found: Callable[[str], list[str]], odd: str, pattern: str
) -> None:
    """Its rows would be missing."""
    for key in (odd, "data/x.jsonl"):
        client.put_object(Bucket=bucket, Key=key, Body=b"{}")
    with pytest.raises(InputError) as caught:
        found(pattern)
    (problem,) = caught.value.problems
    assert problem.file == f"s3://{bucket}/{odd}".replace("\t", "\\t")
    assert "rename it, or name the others" in problem.message


def test_a_listing_goes_on_behind_the_pages_that_obstore_gave(
    bucket: str, client: S3Client, server: S3Server
) -> None:
    """An object is listed once, and markers and empty objects between the pages cost none."""
    names = [f"data/{number:04d}.jsonl" for number in range(1010)]
    for key in (*names, "data/0997.jsonl-", "data/0997.jsonl/", "data/0997.jsonl/part", "data/z//y"):
        client.put_object(Bucket=bucket, Key=key, Body=b"1" if key < names[990] or key > names[1005] else b"")
    listed = list_under(f"s3://{bucket}/data/", server.options)
    found = Counter(info.uri.removeprefix(f"s3://{bucket}/") for info in listed)
    assert found.keys() == {*names, "data/0997.jsonl-", "data/0997.jsonl/part"}
    twice = [name for name, count in found.items() if count > 1]
    assert twice == ["data/0997.jsonl"]  # as obstore shows its marker, which ends the first page


def test_the_folder_of_a_model_may_have_such_keys(bucket: str, client: S3Client, server: S3Server) -> None:
    for key in ("m/config.json", "m//x", "m/sub/y", "m/a\tb", "m/"):
        client.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith("/") else b"{}")
    uri = f"s3://{bucket}/m"
    assert sorted(_folder(uri, "", server.options)) == ["config.json"]
    infos, folders = list_folder(f"{uri}/", server.options)
    assert ([info.uri for info in infos], folders) == ([f"{uri}/config.json"], [f"{uri}/sub/"])
    (info,) = infos
    assert info.size == 2
    assert info.etag == client.head_object(Bucket=bucket, Key="m/config.json")["ETag"]


def test_other_stores_say_what_to_do(
    bucket: str, client: S3Client, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put_object(Bucket=bucket, Key="data//y", Body=b"1")
    monkeypatch.setattr(listings, "is_s3", lambda _uri: False)
    uri = f"s3://{bucket}/data/"
    for listed in (lambda: list(list_under(uri, server.options)), lambda: list_folder(uri, server.options)):
        with pytest.raises(OSError, match=r"cannot be asked for .*empty.*name the files one by one"):
            listed()
