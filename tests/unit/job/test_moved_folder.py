"""An output folder that the user has moved: what the job kept in it is found beside its store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dray.errors import JobFailedError
from dray.job import current_job
from dray.job.beginning.opening import open_job
from dray.job.ending.exporting import export
from dray.job.ending.failed_requests import write_failed
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.job.rows import reusing
from dray.job.rows.following import answer_followers
from dray.job.rows.ingesting import ingest_job, open_shards
from dray.requests.model import Outcome
from dray.requests.pulse import ReadingPulse
from dray.requests.spool.spool import decode, read_shard
from dray.storage.moved_folder import moved_along
from dray.store import JobState, Store, open_store
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

ASKED, ROWS = 6, 12  # each row is there twice


@pytest.fixture
def settings(make_settings: Callable[..., JobSettings], tmp_path: Path) -> JobSettings:
    """A job with kept columns and rows that repeat others, whose store lies in its output folder."""
    table = tmp_path / "in.csv"
    table.write_text("tag,text\n" + "".join(f"l{n},prompt {n % ASKED}\n" for n in range(ROWS)))
    return make_settings(
        source=source_of(str(table), prompt_column="text", keep_columns=["tag"]),
        request=JobRequest(input=[], model="", output="", dedupe=True),
        shard_rows=2,
        job_id="job",
    )


def answer(job: OpenJob, shards: int | None = None) -> None:
    """Every other request is answered, and the rest become error rows."""
    with open_store(job.settings.store_url, create=False) as store:
        for shard in open_shards(ingest_job(job, replicas=1))[:shards]:
            lease = store.claim_shard(job.lease, shard.number, owner="test")
            assert lease is not None
            for chunk in read_shard(shard.uri, shard.offset, shard.length):
                for row in map(decode, chunk):
                    said: dict[str, Any] = {"error_code": "poison"} if row.index % 2 else {"response": b"{}"}
                    store.commit(lease, [Outcome(row.index, row.custom_id, **said)])
            store.finish_shard(lease)
        if shards is None:
            answer_followers(store, job)
            finalise_job(job, Timeline())
        store.release_job(job.lease)


def moved(job: OpenJob) -> tuple[JobSettings, Store]:
    """The settings of a run in the folder's new place, and the store there."""
    old = Path(job.settings.output)
    new = old.rename(old.with_name("moved"))
    settings = replace(job.settings, output=str(new), store_url=f"sqlite:///{new}/dray.db")
    return settings, open_store(settings.store_url, create=False)


@pytest.fixture
def done(settings: JobSettings) -> OpenJob:
    job = open_job(settings)
    answer(job)
    return job


def test_the_requests_of_its_error_rows_are_written(done: OpenJob, tmp_path: Path) -> None:
    _, store = moved(done)
    found = write_failed(store, store.get_job("job"), str(tmp_path / "failed.jsonl"))
    assert found.rows == ROWS / 2
    ids = [json.loads(line)["custom_id"] for line in (tmp_path / "failed.jsonl").read_text().splitlines()]
    assert sorted(ids) == sorted(f"row-{number}" for number in range(1, ROWS, 2))


def test_kept_columns_stand_beside_its_answers(done: OpenJob, tmp_path: Path) -> None:
    _, store = moved(done)
    frame = store.to_dataframe("job")
    assert list(frame["tag"]) == [f"l{number}" for number in range(ROWS)]
    form: Any = "jsonl"
    job = store.get_job("job")
    export(store, job, str(tmp_path / "x"), form, kept=True, part_bytes=1 << 30, overwrite=False)
    lines = (tmp_path / "x" / "output.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"]["tag"] for line in lines] == [f"l{n}" for n in range(0, ROWS, 2)]


def test_another_job_takes_its_answers(done: OpenJob, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, store = moved(done)
    monkeypatch.setattr(reusing, "_difference", lambda *_: None)
    other = open_job(replace(settings, job_id="other", output=f"{settings.output}/../other"))
    earlier = reusing.EarlierAnswers(store, other, store.get_job("other"), None)
    assert len(list(earlier.keyed(ReadingPulse()))) == ASKED / 2
    assert earlier.notes == []


@pytest.mark.parametrize("shards", [1, None], ids=["with open rows", "completed"])
def test_a_resume_needs_no_input(settings: JobSettings, shards: int | None) -> None:
    """It read all rows again, which an input of the day before does not give."""
    job = open_job(settings)
    answer(job, shards)
    there, store = moved(job)
    Path(settings.source.inputs[0]).unlink()  # type: ignore[union-attr]
    with current_job.begun_before("job"):  # as `dray resume` does
        again = open_job(there, resume=True)
    answer(again)
    assert (store.get_job("job").state, store.counts("job").failed) == (JobState.COMPLETED, ROWS / 2)
    assert [
        name for name in map(str, Path(there.output).rglob("requests-*")) if "requests-1.jsonl" not in name
    ] == []
    lines = (Path(there.output) / "errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"]["tag"] for line in lines] == [f"l{n}" for n in range(1, ROWS, 2)]
    info = store.get_job("job").info
    noted = [*(shard.uri for shard in store.shards("job")), info["followers_at"], info["kept"]["uri"]]
    assert all(Path(uri).is_relative_to(there.output) for uri in noted)


def test_a_copy_of_the_folder_reads_what_was_copied_from(done: OpenJob, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(done.settings.output, copy)
    with open_store(f"sqlite:///{copy}/dray.db", create=False) as store:
        uri = store.shards("job")[0].uri
        assert store.now_at(uri) == uri
        Path(uri).unlink()
        assert Path(store.now_at(uri)).is_relative_to(copy)


def test_what_is_nowhere_is_told_by_its_first_place(done: OpenJob, tmp_path: Path) -> None:
    _, store = moved(done)
    for file in tmp_path.rglob("requests-1.jsonl"):
        file.unlink()
    with pytest.raises(JobFailedError, match=rf"{done.work}/requests-1.jsonl: .* are gone.*bring them back"):
        write_failed(store, store.get_job("job"), str(tmp_path / "failed.jsonl"))


@pytest.mark.parametrize(
    "uri", ["s3://b/out/.dray/a-1/requests-1.jsonl", "/out/requests-1.jsonl", "requests-1.jsonl", "/a/b/c/d"]
)
def test_other_files_are_where_they_were(uri: str, tmp_path: Path) -> None:
    (tmp_path / ".dray" / "a-1").mkdir(parents=True)
    (tmp_path / ".dray" / "a-1" / "requests-1.jsonl").touch()
    assert moved_along(uri, str(tmp_path)) == uri
