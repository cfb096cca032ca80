"""What the store keeps of a job so that ``dray resume`` can start it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from dray.errors import ConfigError
from dray.job.identity import fingerprint_of
from dray.job.settings import JobSettings
from flows.parameters import EngineOptions, RowOptions, SamplingOptions
from flows.resolving import job_settings

pytestmark = pytest.mark.unit


def _settings(**given: Any) -> JobSettings:
    values: dict[str, Any] = {
        "job_id": None,
        "rows": RowOptions(),
        "sampling": SamplingOptions(),
        "engine": EngineOptions(name="simulated"),
        "store": None,
        "cluster": "local",
        "objects": None,
        "output_format": "jsonl",
    }
    return job_settings(**{**values, **given})


def _again(recipe: dict[str, Any]) -> JobSettings:
    """As the flow reads its parameters: from JSON, through its models."""
    given = orjson.loads(orjson.dumps(recipe))
    return _settings(
        inputs=given["input"],
        model=given["model"],
        output=given["output"],
        rows=RowOptions(**given["rows"]),
        sampling=SamplingOptions(**given["sampling"]),
        engine=EngineOptions(**given["engine"]),
        store=given["store"],
        cluster=given["cluster"],
        objects=given["objects"],
        output_format=given["format"],
    )


def test_a_recipe_makes_the_same_job(tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text("text,id\nhello,1\n")
    first = _settings(
        inputs=[str(table)],
        model="m",
        output=str(tmp_path / "out"),
        rows=RowOptions(kind="completion", template="Say {text}", id_column="id", skip_invalid=True),
        sampling=SamplingOptions(max_tokens=7, temperature=0, extra={"stop": ["."]}),
        engine=EngineOptions(name="simulated", replicas=3, arguments={"max_num_seqs": 5}),
        output_format="parquet",
    )
    second = _again(dict(first.recipe))
    assert second == first
    assert fingerprint_of(second) == fingerprint_of(first)


@pytest.mark.parametrize(
    "store",
    ["postgresql://me:hidden-word@host/dray", "postgresql://host/dray?user=me&password=hidden-word"],
)
def test_a_password_among_the_parameters_is_refused(store: str) -> None:
    """Prefect keeps them."""
    with pytest.raises(ConfigError, match="env:NAME") as refused:
        _settings(inputs=["in.jsonl"], model="m", output="/out", store=store)
    assert "hidden-word" not in str(refused.value)


def test_a_url_without_one_is_not() -> None:
    settings = _settings(
        inputs=["in.jsonl"], model="m", output="/out", store="postgresql://me@host:5432/dray"
    )
    assert settings.store_url == "postgresql://me@host:5432/dray"


@pytest.mark.parametrize(("window", "seconds"), [("45s", 45), ("90m", 5400), ("1.5h", 5400), ("7d", 604_800)])
def test_a_completion_window_in_words(window: str, seconds: float) -> None:
    settings = _settings(inputs=["in.jsonl"], model="m", output="/out", completion_window=window)
    assert settings.completion_window == seconds
    assert settings.recipe["completion_window"] == window


@pytest.mark.parametrize("window", ["", "24", "h", "-1h", "1 day", "0h"])
def test_a_completion_window_that_is_none(window: str) -> None:
    with pytest.raises(ConfigError, match="completion_window"):
        _settings(inputs=["in.jsonl"], model="m", output="/out", completion_window=window)


def test_a_variable_is_kept_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URL_OF_STORE", "postgresql://me:hidden-word@host/dray")
    settings = _settings(inputs=["in.jsonl"], model="m", output="/out", store="env:URL_OF_STORE")
    assert settings.recipe["store"] == "env:URL_OF_STORE"
    assert settings.store_url.endswith("@host/dray")
