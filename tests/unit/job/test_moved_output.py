"""A job that goes on with its output elsewhere, or in the same folder, spelled otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError, JobFailedError
from dray.job.beginning.opening import open_job
from dray.job.ending.exporting import export
from dray.job.ending.failed_requests import FailedRequests, write_failed
from dray.job.ending.finalising import finalise_job
from dray.job.ending.publishing import _was_of_others
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.job.rows.following import answer_followers
from dray.job.rows.ingesting import ingest_job, open_shards
from dray.requests.model import Outcome
from dray.requests.spool.spool import decode, read_shard
from dray.store import Store, open_store
from tests.support.sources import source_of
from tests.support.spools import spool_files

pytestmark = pytest.mark.unit

MakeSettings = Callable[..., JobSettings]
ASKED = 4
"""Things that the rows ask, each of them three times."""
ROWS = 3 * ASKED


@pytest.fixture
def settings(make_settings: MakeSettings, tmp_path: Path) -> MakeSettings:
    """A job with all that lies beside a spool: kept columns, rows that follow another, and reused rows."""
    table = tmp_path / "in.csv"
    table.write_text("".join(["label,text\n", *(f"l{n},prompt {n % ASKED}\n" for n in range(ROWS))]))
    source = source_of(str(table), prompt_column="text", keep_columns=["label"])
    request = JobRequest(input=[], model="", output="", dedupe=True)
    given: dict[str, Any] = {"source": source, "request": request, "shard_rows": 2, "job_id": "job"}
    return lambda **changes: make_settings(**given | {"store_url": f"sqlite:///{tmp_path}/dray.db"} | changes)


@pytest.fixture(params=["above", "link"])
def spelled(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The output folder in two spellings, as an earlier run has it and as a later one."""
    if request.param == "above":
        (tmp_path / "scripts").mkdir()
        return f"{tmp_path}/scripts/../out", f"{tmp_path}/out"
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    return f"{tmp_path}/disk/out", f"{tmp_path}/home/out"


def answer(job: OpenJob, shards: int | None = None, *, say: Callable[[str], None] | None = None) -> None:
    """Give rows outcomes, those of so many shards: an error, so that followers fail, too."""
    with open_store(job.settings.store_url, create=False) as store:
        for shard in open_shards(ingest_job(job, replicas=1, say=say))[:shards]:
            lease = store.claim_shard(job.lease, shard.number, owner="test")
            assert lease is not None
            for chunk in read_shard(shard.uri, shard.offset, shard.length):
                rows = [decode(line) for line in chunk]
                store.commit(lease, [Outcome(r.index, r.custom_id, error_code="poison") for r in rows])
            store.finish_shard(lease)
        if shards is None:
            answer_followers(store, job)


def begun(settings: JobSettings, shards: int) -> OpenJob:
    """A job whose first driver has ended, with some of its shards done."""
    job = open_job(settings)
    answer(job, shards)
    release(job)
    return job


def release(job: OpenJob) -> Store:
    store = open_store(job.settings.store_url, create=False)
    store.release_job(job.lease)
    return store


@pytest.mark.parametrize("done", [1, 2])
def test_the_same_folder_spelled_otherwise_keeps_all_its_files(
    settings: MakeSettings, spelled: tuple[str, str], tmp_path: Path, done: int
) -> None:
    first, second = spelled
    job = begun(settings(output=first), done)
    reused = Path(job.work) / "requests-1.jsonl.reused"  # as where an earlier job had answers
    reused.write_bytes(b"")
    with release(job) as store:
        again = open_job(settings(output=second))
        store.merge_job_info(again.lease, {"reused_at": str(reused)})
    before = spool_files(job)
    assert before == [f"requests-1.jsonl{ending}" for ending in ("", ".followers", ".kept", ".reused")]
    told: list[str] = []
    answer(again, say=told.append)
    finalise_job(again, Timeline())
    assert spool_files(job) == before
    assert [line for line in told if "copying" in line] == []
    with release(again) as store:
        assert {shard.uri for shard in store.shards("job")} == {f"{again.work}/requests-1.jsonl"}
        failed = write_failed(store, store.get_job("job"), str(tmp_path / "failed.jsonl"))
    assert failed == FailedRequests(rows=ROWS, others=0, unread=0)
    lines = (Path(second) / "errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [{"label": f"l{n}"} for n in range(ROWS)]


def test_a_folder_of_another_job_stays_to_be_replaced_where_it_is_spelled_otherwise(
    settings: MakeSettings, spelled: tuple[str, str]
) -> None:
    first, second = spelled
    release(open_job(settings(job_id="other", output=first))).close()
    with release(open_job(settings(output=first, overwrite=True))) as store:
        assert _was_of_others(store, open_job(settings(output=second)))


def test_a_folder_from_before_there_were_markers_is_the_job_s_in_any_spelling(
    settings: MakeSettings, spelled: tuple[str, str]
) -> None:
    first, second = spelled
    job = open_job(settings(output=first))
    answer(job)
    finalise_job(job, Timeline())
    (Path(first) / ".dray" / "owner.json").unlink()
    with (
        release(job) as store,
        pytest.raises(ConfigError, match="belongs to job job, whose files"),
    ):
        form: Any = "jsonl"
        export(store, store.get_job("job"), second, form, kept=True, part_bytes=1 << 30, overwrite=False)
    assert open_job(settings(output=second)).resumed


@pytest.mark.parametrize("lost", [False, True])
def test_the_requests_of_all_error_rows_are_found_where_the_output_is_moved(
    settings: MakeSettings, tmp_path: Path, lost: bool
) -> None:
    """Rows that repeat another one were left out, and taken for rows that never were requests."""
    job = begun(settings(output=f"{tmp_path}/a"), 1)
    if lost:  # they are read again, and all that lies beside them, too
        for file in Path(job.work).iterdir():
            file.unlink()
    again = open_job(settings(output=f"{tmp_path}/b"))
    answer(again)
    finalise_job(again, Timeline())
    with release(again) as store:
        followers = store.get_job("job").info["followers_at"]
        assert Path(followers).is_relative_to(tmp_path / ("b" if lost else "a"))
        file = tmp_path / "failed.jsonl"
        found = write_failed(store, store.get_job("job"), str(file))
        assert found == FailedRequests(rows=ROWS, others=0, unread=0)
        ids = sorted(json.loads(line)["custom_id"] for line in file.read_text().splitlines())
        assert ids == sorted(f"row-{number}" for number in range(ROWS))

        Path(followers).unlink()
        with pytest.raises(JobFailedError, match=r"\.followers: .* gone, .*bring it back, or .*--output"):
            write_failed(store, store.get_job("job"), str(file), overwrite=True)
        assert len(file.read_text().splitlines()) == ROWS


def test_followers_stay_where_a_job_comes_back_to_its_first_folder(
    settings: MakeSettings, tmp_path: Path
) -> None:
    """Its requests lie in the last spool, and the rows that follow others beside the first."""
    begun(settings(output=f"{tmp_path}/a"), 1)
    begun(settings(output=f"{tmp_path}/b"), 0)
    again = open_job(settings(output=f"{tmp_path}/a"))
    answer(again)
    finalise_job(again, Timeline())
    with release(again) as store:
        found = write_failed(store, store.get_job("job"), str(tmp_path / "failed.jsonl"))
    assert found.rows == ROWS


def test_a_spool_that_is_written_again_has_its_followers_beside_it(settings: MakeSettings) -> None:
    job = begun(settings(), 1)
    (Path(job.work) / "requests-1.jsonl").unlink()
    again = open_job(settings())
    answer(again)
    finalise_job(again, Timeline())
    assert spool_files(job) == [f"requests-2.jsonl{ending}" for ending in ("", ".followers", ".kept")]


def test_the_followers_of_a_job_of_an_earlier_version_lie_beside_its_spool(
    settings: MakeSettings, tmp_path: Path
) -> None:
    job = open_job(settings())
    answer(job)
    with release(job) as store:
        old = store.get_job("job")
        old = replace(old, info={key: value for key, value in old.info.items() if key != "followers_at"})
        assert write_failed(store, old, str(tmp_path / "failed.jsonl")).rows == ROWS
