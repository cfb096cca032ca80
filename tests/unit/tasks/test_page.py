"""Artifacts: one set for each job, under keys that Prefect takes."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect.client.schemas.actions import ArtifactCreate

from dray.report.artifact import web_address
from dray.storage.objects import ObjectStoreOptions
from tasks import page
from tasks.page import artifact_key

pytestmark = pytest.mark.unit

IDS = [
    "job",
    "Job",
    "job_1",
    "job.1",
    "tickets-c7fdc8ae9a7b",
    "größe",
    "-",
    "a" * 300,
    "a" * 301,
    "日本",
    "日本語",
]


@pytest.mark.parametrize("job_id", IDS)
def test_prefect_takes_the_key_of_any_job(job_id: str) -> None:
    key = artifact_key(job_id, "report")
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key)
    assert ArtifactCreate(key=key).key == key
    assert len(key) < 100


def test_no_two_jobs_share_a_key() -> None:
    assert len({artifact_key(job_id, "report") for job_id in IDS}) == len(IDS)


def test_a_plain_name_stays_readable() -> None:
    assert artifact_key("tickets-c7fdc8ae9a7b", "progress") == "tickets-c7fdc8ae9a7b-progress"


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("/data/out/report.html", None),
        ("file:///data/out/report.html", None),
        ("https://example.org/report.html", "https://example.org/report.html"),
        ("s3://bucket/a b/report.html", "https://console.aws.amazon.com/s3/object/bucket?prefix=a%20b/report.html"),
        ("gs://bucket/report.html", None),
    ],
)  # fmt: skip
def test_a_link_is_there_where_a_browser_can_follow_it(
    uri: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    assert web_address(uri) == address


def test_another_s3_has_no_console_of_amazons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert web_address("s3://bucket/report.html") is None


@pytest.mark.parametrize(
    ("options", "has_link"),
    [
        (ObjectStoreOptions(region="eu-central-1"), True),
        (ObjectStoreOptions(endpoint="https://minio.example"), False),
        (ObjectStoreOptions(extra=(("aws_endpoint_url", "https://minio.example"),)), False),
    ],
)
def test_a_store_that_a_block_names_has_no_console_of_amazons(
    options: ObjectStoreOptions, has_link: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    assert (web_address("s3://bucket/report.html", options) is not None) is has_link


def test_the_page_links_the_report_by_the_jobs_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[str] = []
    monkeypatch.setattr(page, "create_markdown_artifact", lambda *_, **__: None)
    monkeypatch.setattr(page, "create_link_artifact", lambda address, **_: links.append(address))
    monkeypatch.setattr(page, "render_markdown", lambda *_, **__: "")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    result: Any = SimpleNamespace(report="s3://bucket/report.html")
    for objects in (None, ObjectStoreOptions(endpoint="https://minio.example")):
        job: Any = SimpleNamespace(job_id="job", settings=SimpleNamespace(objects=objects))
        page._show(job, cast("Any", None), result)
    assert len(links) == 1
