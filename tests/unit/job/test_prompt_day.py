"""The day that prompts have as today is the job's, whenever its rows run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from dray.driver.whole_job import engine_spec
from dray.engine.prompt_day import VARIABLE, day_asked, day_at
from dray.errors import ConfigError, WeightsError
from dray.job.beginning import prompt_day
from dray.job.beginning.opening import open_job
from dray.job.beginning.prompt_day import DAY, may_hold_day, told_day
from dray.job.open_job import OpenJob, reopen
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.store import Job, Store
from dray.weights import Manifest
from dray.weights.source.manifest import ModelFile

pytestmark = pytest.mark.unit

ASKS = '{{ strftime_now("%d %b %Y") }}{{ messages }}'
LONG_AGO = 1_000_000_000.0  # 2001-09-09 in UTC


@pytest.fixture(autouse=True)
def _no_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def _recorded(job: OpenJob) -> Job:
    with reopen(job) as store:
        return store.get_job(job.job_id)


def _left(job: OpenJob, *, taken_in: bool = True) -> None:
    """The run ends, with the rows taken in or without."""
    if taken_in:
        ingest_job(job, replicas=1)
    with reopen(job) as store:
        store.release_job(job.lease)


def _begun_long_ago(job: OpenJob, info: dict[str, Any]) -> None:
    """As if the job had been created then, and had that ``info``."""
    engine = create_engine(job.settings.store_url)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET created_at = :at, info = :info"),
            {"at": LONG_AGO, "info": json.dumps(info)},
        )
    engine.dispose()


def test_replicas_get_the_day_on_which_the_job_was_created(make_settings: Callable[..., JobSettings]) -> None:
    """A job that goes on next day would write other bytes: each replica took the day of its own clock."""
    job = open_job(make_settings())
    day = day_at(_recorded(job).created_at)
    assert (job.prompt_day, engine_spec(job).prompt_day, _recorded(job).info[DAY]) == (day, day, day)
    _left(job)
    _begun_long_ago(job, {**_recorded(job).info, DAY: "2001-09-09"})
    assert engine_spec(open_job(job.settings)).prompt_day == "2001-09-09"


def test_a_job_that_an_earlier_version_began_has_the_day_of_its_creation(
    make_settings: Callable[..., JobSettings],
) -> None:
    job = open_job(make_settings())
    _left(job)
    info = {key: value for key, value in _recorded(job).info.items() if key != DAY}
    _begun_long_ago(job, info)
    assert open_job(job.settings).prompt_day == "2001-09-09"
    assert DAY not in _recorded(job).info, "rows may have been answered on other days"


def test_the_day_that_the_environment_sets_stays_with_the_job(
    make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "2001-02-03")
    job = open_job(make_settings())
    assert engine_spec(job).prompt_day == _recorded(job).info[DAY] == "2001-02-03"
    _left(job)
    for now in ("2002-02-02", "tomorrow", ""):  # also one that a new job would not take
        monkeypatch.setenv(VARIABLE, now)
        again = open_job(job.settings)
        assert again.prompt_day == "2001-02-03"
        of_vllm = replace(again, settings=replace(again.settings, engine="vllm"))
        said = [line.partition(", as when")[0] for line in told_day(of_vllm)]
        assert said == (["prompts keep 2001-02-03 as today"] if now else [])
        _left(again, taken_in=False)


def test_before_the_rows_are_taken_in_the_environment_may_set_another_day(
    make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings()
    for day in ("2001-02-03", "2002-02-02"):
        monkeypatch.setenv(VARIABLE, day)
        job = open_job(settings)
        assert job.prompt_day == _recorded(job).info[DAY] == day
        _left(job, taken_in=False)


@pytest.mark.parametrize("given", ["3 Feb 2001", "20010203", "2001-2-3", "2001-02-30", " "])
def test_what_is_no_day_is_refused_before_there_is_a_job(
    given: str, make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(*_: object, **__: object) -> None:
        raise AssertionError("a job was created")

    monkeypatch.setattr(Store, "create_job", unwanted)
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(ConfigError, match=f"{VARIABLE}='{given}' .*set one, such as 2026-01-31"):
        open_job(make_settings())
    monkeypatch.setenv(VARIABLE, "")
    assert day_asked() is None


def _model(folder: Path, files: dict[str, str]) -> Path:
    for name, content in {"config.json": "{}", "tokenizer_config.json": "{}", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


MODELS = [
    ({}, False),
    ({"chat_template.jinja": "{{ messages }}", "README.md": ASKS}, False),
    ({"chat_template.jinja": ASKS}, True),
    ({"chat_template.json": json.dumps({"chat_template": ASKS})}, True),
    ({"tokenizer_config.json": json.dumps({"chat_template": ASKS})}, True),
    ({"additional_chat_templates/tool_use.jinja": ASKS}, True),
    ({"config.json": json.dumps({"model_type": "gpt_oss"})}, True),
    ({"config.json": "no JSON"}, True),
]


@pytest.mark.parametrize(("files", "holds"), MODELS)
def test_models_whose_conversations_may_hold_the_day(
    files: dict[str, str],
    holds: bool,
    make_settings: Callable[..., JobSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a folder, and at an address; no engine of another kind reads them."""
    folder = _model(tmp_path / "model", files)
    job = open_job(make_settings())
    assert not may_hold_day(_with(job, engine="simulated", model=str(folder)))
    assert may_hold_day(_with(job, model=str(folder))) is holds

    names = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    manifest = Manifest(uri="s3://b/m", files=tuple(ModelFile(name=name, size=1, etag="e") for name in names))
    monkeypatch.setattr(prompt_day, "content_of", lambda _, file, __: (folder / file.name).read_bytes())
    assert may_hold_day(replace(_with(job, model="s3://b/m"), weights=manifest)) is holds


def test_the_template_and_the_tokenizer_that_arguments_name_count(
    make_settings: Callable[..., JobSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = open_job(make_settings())
    plain = str(_model(tmp_path / "plain", {}))
    asks = str(_model(tmp_path / "asks", {"chat_template.jinja": ASKS}))
    harmony = str(_model(tmp_path / "harmony", {"config.json": '{"model_type": "gpt_oss"}'}))

    def holds(model: str, **arguments: str) -> bool:
        return may_hold_day(_with(job, model=model, engine_arguments=arguments))

    assert (holds(plain, chat_template=ASKS), holds(asks, chat_template="{{ messages }}")) == (True, False)
    assert holds(harmony, chat_template="{{ messages }}"), "vLLM reads no template for it"
    assert (holds(plain, tokenizer=asks), holds(asks, tokenizer=plain)) == (True, False)
    assert holds(plain, tokenizer="of a hub"), "what cannot be read is not known to be without"

    def away(*_: object) -> bytes:
        raise WeightsError("the store is away")

    monkeypatch.setattr(prompt_day, "content_of", away)
    manifest = Manifest(uri="s3://b/m", files=(ModelFile(name="config.json", size=1, etag="e"),))
    assert may_hold_day(replace(_with(job, model="s3://b/m"), weights=manifest))


def _with(job: OpenJob, **changes: Any) -> OpenJob:
    return replace(job, settings=replace(job.settings, **({"engine": "vllm"} | changes)))
