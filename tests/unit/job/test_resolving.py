"""What the names in a request lead to, in a run without Prefect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError
from dray.job.options.request import JobRequest
from dray.job.options.resolving import NoBlocks, cluster_settings, job_settings, store_url
from dray.store.database.urls import parse_url

pytestmark = pytest.mark.unit


def request_of(folder: Path, **changes: Any) -> JobRequest:
    given = {"input": str(folder / "in.jsonl"), "model": str(folder), "output": str(folder / "out")}
    return JobRequest.of(**{"engine": {"name": "simulated"}, **given, **changes})


@pytest.mark.parametrize(
    ("field", "way_out"),
    [
        ("store", "--store env:NAME"),
        ("model", "name the model's folder, or its address"),
        ("objects", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_block_is_refused_with_the_way_out(field: str, way_out: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        job_settings(request_of(tmp_path, **{field: "block:mine"}), NoBlocks())
    assert str(refused.value).startswith(f"{field}: block:mine is kept in Prefect")
    assert way_out in str(refused.value)


def test_a_cluster_of_a_block_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"cluster: block:mine is kept in Prefect.*RAY_AUTH_TOKEN"):
        cluster_settings("block:mine", NoBlocks())


def test_a_file_of_a_cluster_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = Path(__file__).parents[3] / "deployments/aws/cluster.toml"
    (tmp_path / "mine.toml").write_bytes(example.read_bytes())
    monkeypatch.chdir(tmp_path)
    named = request_of(tmp_path, cluster="mine.toml").anchored().cluster
    monkeypatch.chdir("/")
    provider = cluster_settings(named, NoBlocks()).provider
    assert provider is not None
    assert provider.kind == "ec2"


def test_everything_else_is_as_in_the_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_STORE", "postgresql://me:hidden-word@host/dray")
    settings = job_settings(request_of(tmp_path, store="env:MY_STORE"), NoBlocks())
    assert settings.store_url == "postgresql://me:hidden-word@host/dray"
    assert settings.recipe["store"] == "env:MY_STORE"
    beside = job_settings(request_of(tmp_path), NoBlocks())
    assert beside.store_url == f"sqlite:///{tmp_path / 'out' / 'dray.db'}"
    assert cluster_settings("10.0.0.5:6379", NoBlocks()).address == "10.0.0.5:6379"
    assert cluster_settings("local", NoBlocks()).address is None


def test_the_store_is_in_the_output_folder_whatever_that_is_called(tmp_path: Path) -> None:
    """The part before the question mark was made a folder of its own, with the store in it."""
    folder = tmp_path / "answers?v=2"
    assert parse_url(store_url(None, str(folder), NoBlocks())).database == str(folder / "dray.db")
