"""A job is opened as it is when it is claimed: another command may have had it since it was looked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError, JobChangedError
from dray.job.beginning.identity import fingerprint_of
from dray.job.beginning.opening import open_job, outputs_of
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.store import Fingerprint, Job, JobLease, Store, open_store
from tests.support.sources import source_of

pytestmark = pytest.mark.unit


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Store], object]], None]:
    """Has something done once, after the next ``open_job`` created its job and before it claims it."""
    real = Store.claim_job
    waiting: list[Callable[[Store], object]] = []

    def claim(store: Store, *args: Any, **options: Any) -> JobLease:
        if waiting:
            waiting.pop()(store)
        return real(store, *args, **options)

    monkeypatch.setattr(Store, "claim_job", claim)
    return waiting.append


def _other_input(settings: JobSettings, folder: Path) -> JobSettings:
    path = folder / "other.jsonl"
    path.write_text('{"prompt": "another"}\n')
    return replace(settings, source=source_of([str(path)], prompt_column="prompt"))


def _taken_in_and_left(settings: JobSettings) -> OpenJob:
    """Another run of the job, which is over."""
    job = open_job(settings)
    ingest_job(job, replicas=1)
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)
    return job


def _recorded(settings: JobSettings) -> Job:
    with open_store(settings.store_url, create=False) as store:
        return store.get_job("nightly")


def test_a_command_is_refused_whose_id_another_gave_to_other_content(
    make_settings: Callable[..., JobSettings], between: Callable[..., None], tmp_path: Path
) -> None:
    """Its input would run under the other's fingerprint, and count as the other's job for ever."""
    first = make_settings(job_id="nightly")
    second = _other_input(first, tmp_path)
    given: list[Fingerprint] = [fingerprint_of(second)]
    between(lambda store: store.create_job("nightly", fingerprint=given[0], settings={}))
    with pytest.raises(JobChangedError, match="another command gave job nightly other content: its input"):
        open_job(first)
    assert (_recorded(first).driver, _recorded(first).fingerprint) == (None, given[0])
    open_job(second)


def test_settings_are_those_of_the_run_that_drives_the_job(
    make_settings: Callable[..., JobSettings], between: Callable[..., None], tmp_path: Path
) -> None:
    """The other run found the same job, wrote its own settings and took the rows in."""
    settings = make_settings(job_id="nightly")
    other = replace(settings, output=str(tmp_path / "of the other"))
    between(lambda _: _taken_in_and_left(other))
    job = open_job(settings)
    found = _recorded(settings)
    assert found.settings["output"] == settings.output
    assert sorted(outputs_of(found)) == sorted([settings.output, other.output])
    assert (job.resumed, found.total) == (True, 50)


def test_a_folder_of_a_run_between_is_not_forgotten(
    make_settings: Callable[..., JobSettings], between: Callable[..., None], tmp_path: Path
) -> None:
    settings = make_settings(job_id="nightly")
    outputs = [settings.output, str(tmp_path / "second"), str(tmp_path / "third")]
    _taken_in_and_left(settings)
    between(lambda _: _taken_in_and_left(replace(settings, output=outputs[1])))
    open_job(replace(settings, output=outputs[2]))
    assert outputs_of(_recorded(settings)) == outputs


def test_folders_of_the_former_content_are_not_forgotten(
    make_settings: Callable[..., JobSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a command dies between the content that it gives the job, and its claim."""
    settings = make_settings(job_id="nightly")
    job = open_job(settings)
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)
    second = replace(_other_input(settings, tmp_path), output=str(tmp_path / "second"))
    with monkeypatch.context() as patch, suppress(ConfigError):
        patch.setattr(Store, "claim_job", _dies)
        open_job(second)
    third = replace(second, output=str(tmp_path / "third"))
    assert open_job(third).identity == job.identity
    assert {settings.output, third.output} <= set(outputs_of(_recorded(settings)))


def _dies(*_: object, **__: object) -> JobLease:
    raise ConfigError("it died")
