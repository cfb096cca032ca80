"""What the store keeps of a job so that ``dray resume`` can start it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from dray.errors import ConfigError
from dray.job.beginning.identity import fingerprint_of
from dray.job.options.resolving import job_settings
from dray.job.options.settings import JobSettings
from dray.job.options.spelling import as_parameters
from dray.kinds import Kind
from dray.requests.sources import SqlQuery
from flows.naming import named, named_input
from flows.parameters import EngineOptions, JobRequest, RowOptions, SamplingOptions
from flows.plan import plan
from flows.resolving import PrefectBlocks
from tests.support.sources import source_of

pytestmark = pytest.mark.unit


def _settings(**given: Any) -> JobSettings:
    return job_settings(JobRequest.of(**{"engine": {"name": "simulated"}, **given}), PrefectBlocks())


def _again(recipe: dict[str, Any]) -> JobSettings:
    """As the flow reads its parameters: from JSON, through its models."""
    return _settings(**orjson.loads(orjson.dumps(recipe)))


def test_a_recipe_makes_the_same_job(tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text("text,id\nhello,1\n")
    first = _settings(
        input=[str(table)],
        model="m",
        output=str(tmp_path / "out"),
        rows=RowOptions(kind="completion", template="Say {text}", id_column="id", skip_invalid=True),
        sampling=SamplingOptions(max_tokens=7, temperature=0, extra={"stop": ["."]}),
        engine=EngineOptions(name="simulated", replicas=3, arguments={"max_num_seqs": 5}),
        format="parquet",
    )
    second = _again(dict(first.recipe))
    assert second == first
    assert fingerprint_of(second) == fingerprint_of(first)


@pytest.mark.parametrize(
    "store",
    [
        "postgresql://me:hidden-word@host/dray",
        "postgresql://me:hidden-word/x@host/dray",
        "postgresql://host/dray?user=me&password=hidden-word",
    ],
)
def test_a_password_among_the_parameters_is_refused(store: str) -> None:
    """Prefect keeps them."""
    with pytest.raises(ConfigError, match="env:NAME") as refused:
        _settings(input=["in.jsonl"], model="m", output="/out", store=store)
    assert "hidden-word" not in str(refused.value)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "url", ["postgresql://me:hidden-word@host/db", "postgresql://me:p@hidden:word@host/db"]
)
def test_so_is_one_of_a_querys_database(url: str, several: bool) -> None:
    rows = RowOptions(query="select text from t", prompt_column="text")
    with pytest.raises(ConfigError, match="env:NAME") as refused:
        _settings(input=[url] if several else url, model="m", output="/out", rows=rows)
    assert "hidden" not in str(refused.value)
    with pytest.raises(ConfigError, match="env:NAME"):
        plan.fn(input=url, model="m", rows=rows)


def test_a_plans_store_with_a_password_is_refused_as_a_jobs_is() -> None:
    with pytest.raises(ConfigError, match="the store's URL holds a password") as refused:
        plan.fn(input="in.jsonl", model="m", store="postgresql://me:hidden@host/db")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("several", [False, True])
def test_a_querys_database_may_stand_in_a_variable(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DATABASE", "postgresql://me:hidden-word@host/db")
    rows = RowOptions(query="select text from t", prompt_column="text")
    given = ["env:MY_DATABASE"] if several else "env:MY_DATABASE"
    settings = _settings(input=given, model="m", output="/out", rows=rows)
    assert isinstance(settings.source, SqlQuery)
    assert settings.source.url == "postgresql://me:hidden-word@host/db"
    assert settings.recipe["input"] == given


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("/data/in/requests.jsonl", "in/requests.jsonl"),
        ("file:///data/in.jsonl", "data/in.jsonl"),
        ("s3://bucket/folder/in.jsonl", "folder/in.jsonl"),
        ("https://me:hidden@host/in.jsonl?signature=hidden", "host/in.jsonl"),
        ("env:MY_DATABASE", "env:MY_DATABASE"),
        ("postgresql://me:hidden@host", "query"),
        ("postgresql://me:hid/den@host/db", "query"),
        ("mysql://host/db?passwd=hidden", "query"),
    ],
)
def test_the_name_of_a_run_holds_no_secret(address: str, name: str) -> None:
    assert named(address, 2) == name
    assert named_input({"input": [address]}, 2) == name
    assert named_input({"input": []}, 2) == "nothing"


def test_a_url_without_one_is_not() -> None:
    settings = _settings(input=["in.jsonl"], model="m", output="/out", store="postgresql://me@host:5432/dray")
    assert settings.store_url == "postgresql://me@host:5432/dray"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"sampling": {"seed": 2**64}}, "seed"),
        ({"sampling": {"extra": {"logit_bias": {"1": 2**70}}}}, "extra"),
        ({"engine": {"name": "simulated", "arguments": {"seed": -(2**64)}}}, "arguments"),
    ],
)
def test_a_number_of_more_than_64_bits_is_refused_by_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        _settings(input=["in.jsonl"], model="m", output="/out", **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"system_prompt": "a\0b"}, "system_prompt: a text has a NUL character"),
        ({"input": ["a\0b"]}, "input: a text has a NUL character"),
        ({"sampling": {"extra": {"stop": ["x", "\0"]}}}, "sampling.extra: a text has a NUL character"),
        ({"sampling": {"extra": {"\0": 1}}}, "sampling.extra: a text has a NUL character"),
        ({"system_prompt": "\ud800"}, "system_prompt: it cannot be written as JSON"),
        ({"price": float("inf")}, "price inf: a number is not finite"),
        (
            {"sampling": {"extra": {"logit_bias": {"1": float("nan")}}}},
            "sampling.extra: a number is not finite",
        ),
        ({"engine": {"arguments": {"a": [float("-inf")]}}}, "engine.arguments: a number is not finite"),
    ],
)
def test_what_no_store_could_keep_is_refused_by_its_field(options: dict[str, Any], told: str) -> None:
    """PostgreSQL has no NUL, and JSON would make null of a number that is not finite."""
    with pytest.raises(ConfigError) as caught:
        _settings(**{"input": ["in.jsonl"], "model": "m", "output": "/out"} | options)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(("window", "seconds"), [("45s", 45), ("90m", 5400), ("1.5h", 5400), ("7d", 604_800)])
def test_a_completion_window_in_words(window: str, seconds: float) -> None:
    settings = _settings(input=["in.jsonl"], model="m", output="/out", completion_window=window)
    assert settings.completion_window == seconds
    assert settings.recipe["completion_window"] == window


@pytest.mark.parametrize("window", ["", "24", "h", "-1h", "1 day", "0h"])
def test_a_completion_window_that_is_none(window: str) -> None:
    with pytest.raises(ConfigError, match=r"^--completion-window: ") as refused:
        _settings(input=["in.jsonl"], model="m", output="/out", completion_window=window)
    assert as_parameters(str(refused.value), JobRequest).startswith("completion_window: ")


def test_a_variable_is_kept_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URL_OF_STORE", "postgresql://me:hidden-word@host/dray")
    settings = _settings(input=["in.jsonl"], model="m", output="/out", store="env:URL_OF_STORE")
    assert settings.recipe["store"] == "env:URL_OF_STORE"
    assert settings.store_url.endswith("@host/dray")


STORED_BEFORE: dict[str, Any] = {
    "input": ["/data/in.csv"],
    "model": "/models/m",
    "output": "/data/out",
    "rows": {
        "kind": "completion",
        "prompt_column": None,
        "template": "Say {text}",
        "messages_column": None,
        "system_prompt": None,
        "id_column": "id",
        "query": None,
        "delimiter": None,
        "model_name": None,
        "skip_invalid": True,
    },
    "sampling": {"max_tokens": 7, "temperature": 0.0, "top_p": None, "seed": None, "extra": {"stop": ["."]}},
    "engine": {
        "name": "simulated",
        "replicas": 3,
        "arguments": {"max_num_seqs": 5},
        "stall_seconds": 600.0,
        "shard_rows": None,
        "replica_cpus": None,
        "replica_gpus": None,
    },
    "store": None,
    "cluster": "local",
    "objects": None,
    "format": "parquet",
    "completion_window": None,
}
"""The recipe of a job as databases have held it since before there was a JobRequest (f612d34)."""
CAME_LATER = {
    "price": None, "part_bytes": 64 << 30, "overflow": "error", "dedupe": False, "reuse": False,
    "deadline": None, "budget": None,
}  # fmt: skip
"""Options that it lacks, with the defaults that such a job gets."""


def test_a_recipe_that_was_stored_before_starts_the_same_job() -> None:
    settings = _settings(**STORED_BEFORE, job_id="job", resume=True)
    engine = {**STORED_BEFORE["engine"], "order": "auto", "auto": False}
    later: dict[str, Any] = {"reorder_fields": False, "image_column": None, "image_root": None}
    later |= {"document_column": None, "audio_column": None, "audio_root": None}
    later |= {"video_column": None, "video_root": None, "keep_columns": [], "quoting": None}
    rows = {**STORED_BEFORE["rows"], **later}
    assert dict(settings.recipe) == {**STORED_BEFORE, **CAME_LATER, "engine": engine, "rows": rows}
    assert settings.job_id == "job"
    assert settings.engine_arguments == {"max_num_seqs": 5}
    assert settings.defaults.sampling == {"max_tokens": 7, "temperature": 0.0, "stop": ["."]}
    assert settings.source == source_of(
        ["/data/in.csv"], kind=Kind.COMPLETION, template="Say {text}", id_column="id"
    )


def test_a_recipe_of_an_earlier_version_lacks_options() -> None:
    rows = {"kind": "chat", "prompt_column": "text"}
    known = {name: STORED_BEFORE[name] for name in ("input", "model", "output", "store", "cluster")}
    settings = _settings(**known, rows=rows, sampling={"max_tokens": 7}, engine={"name": "simulated"})
    assert settings.stall_seconds == 600.0


def test_a_url_with_a_login_is_not_kept() -> None:
    query = {"query": "select 1 as a", "prompt_column": "a"}
    settings = _settings(
        input="postgresql://me@host/db",
        model="m",
        output="/out",
        rows=query,
        store="postgresql://me@host/dray",
    )
    assert settings.recipe["input"] is None
    assert settings.recipe["store"] is None
    assert _settings(input="s3://b/a@b.jsonl", model="m", output="/out").recipe["input"] == "s3://b/a@b.jsonl"


def test_a_store_beside_the_flow_is_kept_as_seen_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = _settings(input=["in.jsonl"], model="m", output="out", store="sqlite:///jobs.db")
    assert settings.recipe["store"] == f"sqlite:///{tmp_path}/jobs.db"
    assert settings.recipe["input"] == [f"{tmp_path}/in.jsonl"]
