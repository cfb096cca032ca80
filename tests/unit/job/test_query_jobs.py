"""A query's job that is over, when the query gives other rows: a new job, and no old answers."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError, InputError, JobChangedError, RefusedError
from dray.job.beginning.opening import open_job
from dray.job.deleting import delete_job
from dray.job.ending.expiring import expire
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.store import JobState, open_store, store_option
from tests.support.sources import source_of

pytestmark = pytest.mark.unit


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "data.db"
    _execute(path, "create table docs (id text, text text, seen int)")
    _execute(path, "insert into docs values ('a', 'alpha', 1), ('b', 'beta', 1)")
    return path


@pytest.fixture
def settings_of(make_settings: Callable[..., JobSettings], database: Path) -> Callable[..., JobSettings]:
    query = "select * from docs where text != 'none'"
    source = source_of(f"sqlite:///{database}", query=query, prompt_column="text", id_column="id")
    return lambda **changes: make_settings(source=source, **changes)


def _execute(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def _finished(settings: JobSettings) -> OpenJob:
    job = open_job(settings)
    ingest_job(job, replicas=1)
    with open_store(settings.store_url, create=False) as store:
        expire(store, job)
        finalise_job(job, Timeline(0.0), [], state=JobState.EXPIRED)
        store.release_job(job.lease)
    return job


def _opened(settings: JobSettings, **options: Any) -> OpenJob:
    job = open_job(settings, **options)
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)
    return job


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    "change",
    [
        "update docs set text = 'gamma' where id = 'a'",
        "update docs set id = 'c' where id = 'a'",
        "update docs set text = 'none' where id = 'a'",
        "insert into docs values ('c', 'gamma', 1)",
        "insert into docs values ('a', 'alpha', 1)",
    ],
)
def test_other_rows_are_a_new_job(
    settings_of: Callable[..., JobSettings], database: Path, change: str
) -> None:
    first = _finished(settings_of())
    _execute(database, change)
    with pytest.raises(ConfigError, match=rf"other rows.*{first.job_id}.*--overwrite") as refused:
        open_job(settings_of())
    assert "ORDER BY" not in str(refused.value), "these rows have ids"
    assert refused.value.exit_code == 2
    second = _opened(settings_of(overwrite=True))
    assert second.job_id == f"{first.job_id}.2"
    assert not second.resumed


def test_the_same_rows_are_the_same_job(settings_of: Callable[..., JobSettings], database: Path) -> None:
    first = _finished(settings_of())
    _execute(database, "update docs set seen = 2")  # no request holds it
    _execute(database, "insert into docs select 'a', 'alpha', 3 union all select 'c', 'none', 1")
    _execute(database, "delete from docs where id = 'a' and seen = 2")  # another order
    again = _opened(settings_of())
    assert (again.job_id, again.resumed) == (first.job_id, True)


@pytest.mark.parametrize("named", ["nightly", None])
def test_without_ids_rows_in_another_order_are_others_and_the_refusal_says_why(
    make_settings: Callable[..., JobSettings], database: Path, named: str | None
) -> None:
    """An answer is known by its row's place alone: those of the old order would be taken for other rows."""
    source = source_of(f"sqlite:///{database}", query="select text from docs", prompt_column="text")
    settings = make_settings(source=source, job_id=named)
    _finished(settings)
    _execute(database, "insert into docs select * from docs where id = 'a'")
    _execute(database, "delete from docs where rowid = 1")
    with pytest.raises(
        RefusedError, match=r"other rows.*another order \(give a query an ORDER BY, or name an --id-col"
    ):
        open_job(settings)


def test_a_job_that_is_not_over_goes_on_with_its_rows(
    settings_of: Callable[..., JobSettings], database: Path
) -> None:
    _finished(settings_of())
    _execute(database, "insert into docs values ('c', 'gamma', 1)")
    second = _opened(settings_of(overwrite=True))
    _execute(database, "insert into docs values ('d', 'delta', 1)")
    third = _opened(settings_of(overwrite=True))
    assert third.job_id == second.job_id
    _finished(settings_of(overwrite=True))
    assert _opened(settings_of()).job_id == second.job_id
    _execute(database, "insert into docs values ('e', 'epsilon', 1)")
    assert _opened(settings_of(overwrite=True)).job_id.endswith(".3")


def _delete(settings: JobSettings, job_id: str) -> None:
    with open_store(settings.store_url, create=False) as store:
        delete_job(store, job_id)


def _three_jobs(settings_of: Callable[..., JobSettings], database: Path) -> list[str]:
    """The ids of three jobs that are over, each with other rows of one query."""
    found = [_finished(settings_of()).job_id]
    for name in ("c", "d"):
        _execute(database, f"insert into docs values ('{name}', 'gamma', 1)")
        found.append(_finished(settings_of(overwrite=True)).job_id)
    return found


@pytest.mark.parametrize("deleted", [[0], [1], [0, 1]])
def test_the_last_job_is_found_though_older_ones_were_deleted(
    settings_of: Callable[..., JobSettings], database: Path, deleted: list[int]
) -> None:
    """As after ``dray jobs delete --older-than``: its rows are not to be paid for again."""
    jobs = _three_jobs(settings_of, database)
    assert jobs[1:] == [f"{jobs[0]}.2", f"{jobs[0]}.3"]
    for number in deleted:
        _delete(settings_of(), jobs[number])
    again = _opened(settings_of())
    assert (again.job_id, again.resumed) == (jobs[2], True)
    _execute(database, "insert into docs values ('e', 'epsilon', 1)")
    assert _opened(settings_of(overwrite=True)).job_id == f"{jobs[0]}.4"


def test_a_job_that_is_not_over_goes_on_though_the_first_was_deleted(
    settings_of: Callable[..., JobSettings], database: Path
) -> None:
    first = _finished(settings_of())
    _execute(database, "insert into docs values ('c', 'gamma', 1)")
    second = _opened(settings_of(overwrite=True))
    _delete(settings_of(), first.job_id)
    _execute(database, "insert into docs values ('d', 'delta', 1)")
    assert _opened(settings_of()).job_id == second.job_id


def test_jobs_whose_names_only_begin_alike_are_others(
    settings_of: Callable[..., JobSettings], database: Path
) -> None:
    first = _opened(settings_of())
    for name in (f"{first.job_id}.2.9", f"{first.job_id}.x", f"{first.job_id}5", f"{first.job_id}.09"):
        _opened(settings_of(job_id=name, overwrite=True))
    assert _opened(settings_of(overwrite=True)).job_id == first.job_id


def test_a_job_with_a_name_of_its_own_is_refused(
    settings_of: Callable[..., JobSettings], database: Path
) -> None:
    _finished(settings_of(job_id="nightly"))
    _execute(database, "delete from docs where id = 'a'")
    advised = re.escape(f"`dray resume nightly{store_option(settings_of().store_url)}`")
    with pytest.raises(JobChangedError, match=rf"nightly is expired.*other rows.*--job-id.*{advised}"):
        open_job(settings_of(job_id="nightly", overwrite=True))
    resumed = _opened(settings_of(job_id="nightly"), resume=True)
    assert resumed.skipped == 2


def test_a_database_that_is_gone_leaves_a_way_to_the_answers(
    settings_of: Callable[..., JobSettings], database: Path
) -> None:
    job = _finished(settings_of())
    _execute(database, "drop table docs")
    advised = re.escape(f"`dray resume {job.job_id}{store_option(settings_of().store_url)}`")
    with pytest.raises(InputError, match=f"{advised} writes its outputs again"):
        open_job(settings_of())
    assert _opened(settings_of(), resume=True).job_id == job.job_id


def test_rows_of_a_file_are_told_by_its_digest(make_settings: Callable[..., JobSettings]) -> None:
    job = _finished(make_settings())
    assert _opened(make_settings()).job_id == job.job_id


@pytest.mark.parametrize(
    ("url", "anchored"),
    [
        ("sqlite:///data.db", "sqlite:///{cwd}/data.db"),
        ("sqlite+pysqlite:///in/data.db?timeout=5", "sqlite+pysqlite:///{cwd}/in/data.db?timeout=5"),
        ("sqlite:////data.db", "sqlite:////data.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("postgresql:///db", "postgresql:///db"),
        ("env:MINE", "env:MINE"),
    ],
)
def test_a_file_of_sqlite_is_found_from_any_folder(
    url: str, anchored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = JobRequest.of(url, "/m", "/out", rows={"query": "select 1 as a", "prompt_column": "a"})
    assert request.anchored().input == anchored.format(cwd=tmp_path)
