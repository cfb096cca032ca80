"""A job that is resumed goes on with the rows that it took in, whatever files its input has by then."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dray.cli.jobs import recipe_of
from dray.cli.preflight import preflight
from dray.errors import ConfigError, InputError, JobChangedError
from dray.job import current_job
from dray.job.beginning.opening import open_job
from dray.job.open_job import OpenJob
from dray.job.options.request import JobRequest
from dray.job.options.resolving import NoBlocks, job_settings
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.store import open_store
from tests.support.publishing import answer

pytestmark = pytest.mark.unit

ROWS = 5
Change = Callable[[Path], object]


def _write(file: Path, rows: int) -> None:
    body = {"messages": [{"role": "user", "content": file.stem}]}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    ids = (f"{file.stem}-{number}" for number in range(rows))
    file.write_text("".join(json.dumps(line | {"custom_id": one}) + "\n" for one in ids))


def _unreadable(folder: Path) -> None:
    (folder / "b.jsonl").write_text("no JSON\n")


CHANGES = [
    pytest.param(lambda folder: _write(folder / "b.jsonl", 3), id="a file more"),
    pytest.param(lambda folder: _write(folder / "a.jsonl", ROWS + 1), id="a file grew"),
    pytest.param(lambda folder: (folder / "a.jsonl").unlink(), id="no file"),
    pytest.param(_unreadable, id="a file that is none"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    _write(tmp_path / "data" / "a.jsonl", ROWS)
    return tmp_path / "data"


@pytest.fixture
def settings(folder: Path, tmp_path: Path) -> JobSettings:
    engine = {"name": "simulated", "shard_rows": 2}
    request = JobRequest.of(str(folder / "*.jsonl"), "none", str(tmp_path / "out"), engine=engine)
    return job_settings(request, NoBlocks())


def _release(job: OpenJob) -> None:
    with open_store(job.settings.store_url) as store:
        store.release_job(job.lease)


def _begun(settings: JobSettings, *, shards: int | None = 1) -> OpenJob:
    job = open_job(settings)
    answer(job, shards=shards)
    _release(job)
    return job


def _resumed(job: OpenJob) -> OpenJob:
    """The job as ``dray resume`` opens it, which looks before it starts anything."""
    recipe = recipe_of(job.job_id, job.settings.output)
    request = JobRequest.read({**recipe, "resume": True}, ".".join)
    with current_job.begun_before(job.job_id):
        preflight(request)
        return open_job(job_settings(request, NoBlocks()), resume=True)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shards", [1, None], ids=["with open rows", "without"])
def test_it_goes_on_with_its_rows(
    settings: JobSettings, folder: Path, change: Change, shards: int | None
) -> None:
    job = _begun(settings, shards=shards)
    change(folder)
    again = _resumed(job)
    assert (again.job_id, again.resumed, again.skipped < ROWS) == (job.job_id, True, shards is not None)
    answer(again)
    with open_store(settings.store_url) as store:
        assert store.counts(job.job_id).done == ROWS
        assert store.get_job(job.job_id).total == ROWS


def test_the_command_itself_is_another_job_and_names_the_resume(settings: JobSettings, folder: Path) -> None:
    job = _begun(settings)
    _write(folder / "b.jsonl", 3)
    with pytest.raises(ConfigError, match=f"`dray resume {job.job_id}.* goes on with that job as it was beg"):
        open_job(settings)
    with pytest.raises(JobChangedError, match="its input changed"):
        open_job(replace(settings, job_id=job.job_id))


@pytest.mark.parametrize("shards", [1, None], ids=["with open rows", "without"])
def test_a_run_with_its_name_and_resume_is_refused(
    settings: JobSettings, folder: Path, shards: int | None
) -> None:
    """As ``dray run --job-id nightly --resume`` and a flow do the next night: the file has other rows."""
    job = _begun(settings, shards=shards)
    _write(folder / "a.jsonl", ROWS + 1)
    again = {"job_id": job.job_id, "store": settings.store_url, "resume": True}
    request = settings.request.model_copy(update=again)
    preflight(request)
    with pytest.raises(JobChangedError, match="its input changed"):
        open_job(job_settings(request, NoBlocks()), resume=True)


def test_a_run_with_its_name_and_resume_reads_its_input(settings: JobSettings, folder: Path) -> None:
    job = _begun(settings)
    (folder / "a.jsonl").unlink()
    again = {"job_id": job.job_id, "store": settings.store_url, "resume": True}
    with pytest.raises(InputError, match="the pattern matches no file"):
        preflight(settings.request.model_copy(update=again))


def test_requests_that_were_lost_are_not_made_of_other_rows(settings: JobSettings, folder: Path) -> None:
    job = _begun(settings)
    _write(folder / "b.jsonl", 3)
    again = _resumed(job)
    for spool in Path(settings.output).rglob("requests-*.jsonl"):
        spool.unlink()
    with pytest.raises(JobChangedError, match="its input gives other rows now"):
        ingest_job(again, replicas=1)


def test_one_without_rows_takes_in_what_is_there(settings: JobSettings, folder: Path) -> None:
    job = open_job(settings)
    _release(job)
    _write(folder / "b.jsonl", 3)
    again = _resumed(job)
    assert sum(shard.rows for shard in ingest_job(again, replicas=1)) == ROWS + 3


def test_another_input_is_another_job(settings: JobSettings, folder: Path) -> None:
    job = _begun(settings)
    _write(folder / "b.jsonl", 3)
    request = settings.request.model_copy(update={"input": str(folder / "b.jsonl"), "job_id": job.job_id})
    with current_job.begun_before(job.job_id), pytest.raises(JobChangedError, match="its input changed"):
        open_job(job_settings(request, NoBlocks()), resume=True)


def test_one_that_names_no_file_says_so(settings: JobSettings, folder: Path) -> None:
    (folder / "a.jsonl").unlink()
    with pytest.raises(InputError, match="the pattern matches no file"):
        open_job(replace(settings, job_id="new"), resume=True)
