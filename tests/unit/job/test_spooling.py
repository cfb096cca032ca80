"""Each driver has a spool of its own, and the one that the shards were cut from is the one that is read."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.errors import FencedError, JobChangedError, JobFailedError
from dray.job.beginning.opening import open_job
from dray.job.deleting import delete_job
from dray.job.ending.expiring import expire
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.job.rows import ingesting, moving
from dray.job.rows.ingesting import ingest_job
from dray.requests.ingest import ingest
from dray.store import JobState, Shard, Store, open_store
from tests.support.spools import prompts_of, resumed, spool_files

pytestmark = pytest.mark.unit

ROWS = 50


@pytest.fixture
def job(make_settings: Callable[..., JobSettings]) -> OpenJob:
    return open_job(make_settings(shard_rows=10, job_id="job"))


@pytest.fixture
def store(job: OpenJob) -> Iterator[Store]:
    with open_store(job.settings.store_url, create=False) as opened:
        yield opened


def _edit(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def _longer(rows: list[dict[str, Any]]) -> None:
    rows[3]["body"]["messages"][0]["content"] += " and more"


def _as_long(rows: list[dict[str, Any]]) -> None:
    rows[3]["body"]["messages"][0]["content"] = "PROMPT 3"


def _longer_and_shorter(rows: list[dict[str, Any]]) -> None:
    """The size stays, but not where the rows begin."""
    _longer(rows)
    rows[40]["body"]["messages"][0]["content"] = ""


def test_requests_go_along_where_the_output_is_moved(
    job: OpenJob, store: Store, make_settings: Callable[..., JobSettings], tmp_path: Path
) -> None:
    """Nodes that do not share the first output folder could never read them, whatever the user named next."""
    before = ingest_job(job, replicas=1)
    store.release_job(job.lease)
    elsewhere = tmp_path / "elsewhere"
    settings = make_settings(
        shard_rows=10, job_id="job", output=str(elsewhere), store_url=job.settings.store_url
    )
    told: list[str] = []
    moved = open_job(settings)
    after = ingest_job(moved, replicas=1, say=told.append)
    assert {Path(shard.uri).is_relative_to(elsewhere) for shard in after} == {True}
    assert [prompts_of([one]) for one in after] == [prompts_of([one]) for one in before]
    assert [line for line in told if str(Path(before[0].uri).parent) in line]
    assert ingest_job(resumed(store, moved), replicas=1) == after


def test_requests_that_cannot_be_copied_are_named(
    job: OpenJob,
    store: Store,
    make_settings: Callable[..., JobSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> Iterator[bytes]:
        raise OSError(errno.EIO, "Input/output error")

    before = ingest_job(job, replicas=1)
    store.release_job(job.lease)
    monkeypatch.setattr(moving, "stream_range", failing)
    elsewhere = str(tmp_path / "elsewhere")
    settings = make_settings(shard_rows=10, job_id="job", output=elsewhere, store_url=job.settings.store_url)
    with pytest.raises(
        JobFailedError, match=r"\.jsonl: .* cannot be read, to copy them .*: Input/output error"
    ):
        ingest_job(open_job(settings), replicas=1)
    assert store.shards("job") == before


def test_a_driver_that_was_replaced_while_it_took_the_input_in_changes_nothing(
    job: OpenJob, store: Store, job_input: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = job_input.read_text()
    taken: list[list[Shard]] = []

    def frozen(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        taken.append(ingest_job(resumed(store, job), replicas=1))
        _edit(job_input, _longer)  # its own rows are others
        return ingest(*arguments, **options)

    monkeypatch.setattr(ingesting, "ingest", frozen)
    with pytest.raises(FencedError):
        ingest_job(job, replicas=1)
    assert store.shards("job") == taken[0]
    assert prompts_of(taken[0]) == [f"prompt {number}" for number in range(ROWS)]
    assert job_input.read_text() != before
    assert spool_files(job) == ["requests-2.jsonl"]  # its own is gone: nothing reads it


def test_the_spool_of_a_driver_that_published_and_was_replaced_stays(
    job: OpenJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears that it was replaced only as it repeats a transaction whose acknowledgement was lost."""
    add = Store.add_shards

    def twice(self: Store, *arguments: Any, **options: Any) -> None:
        add(self, *arguments, **options)
        resumed(store, job)
        add(self, *arguments, **options)

    monkeypatch.setattr(Store, "add_shards", twice)
    with pytest.raises(FencedError):
        ingest_job(job, replicas=1)
    assert spool_files(job) == ["requests-1.jsonl"]
    assert len(prompts_of(store.shards("job"))) == ROWS


def test_what_a_driver_left_that_stood_still_goes_as_the_job_ends(job: OpenJob, store: Store) -> None:
    """It was stopped in the midst of its spool, which its lock kept, and killed later."""
    after = resumed(store, job)
    shards = ingest_job(after, replicas=1)
    work = Path(job.work)
    (work / "requests-1.jsonl").write_bytes(b"all of it")
    (work / ".requests-1.jsonl.0123abcd.part").write_bytes(b"half of it")
    expire(store, after)
    finalise_job(after, Timeline(0.0), state=JobState.EXPIRED)
    assert spool_files(job) == ["requests-2.jsonl"]
    assert len(prompts_of(shards)) == ROWS


def test_a_driver_of_a_deleted_job_changes_nothing_of_a_newer_one_of_its_name(
    job: OpenJob, store: Store, job_input: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are at the same epoch, in the same folder."""
    taken: list[Shard] = []

    def frozen(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        store.release_job(job.lease)  # stands for the 60 s of a lease
        delete_job(store, "job")
        newer = open_job(job.settings)
        assert newer.lease.epoch == job.lease.epoch
        taken.extend(ingest_job(newer, replicas=1))
        _edit(job_input, _as_long)  # its own rows are others
        return ingest(*arguments, **options)

    monkeypatch.setattr(ingesting, "ingest", frozen)
    with pytest.raises(FencedError):
        ingest_job(job, replicas=1)
    assert store.shards("job") == taken
    assert prompts_of(taken) == [f"prompt {number}" for number in range(ROWS)]


def test_what_a_killed_driver_left_is_removed(
    job: OpenJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ingesting, "reach", killed)
    with pytest.raises(KeyboardInterrupt):
        ingest_job(job, replicas=1)
    monkeypatch.undo()
    assert spool_files(job) == ["requests-1.jsonl"]
    for name in ("requests-1.jsonl", "requests-1.jsonl.rejects"):  # of one that was killed while it wrote
        (Path(job.work) / f".{name}.0123abcd.part").write_bytes(b"half of it")
    shards = ingest_job(resumed(store, job), replicas=1)
    assert spool_files(job) == ["requests-2.jsonl"]
    assert len(prompts_of(shards)) == ROWS


def test_a_spool_that_is_gone_is_written_again(job: OpenJob, store: Store) -> None:
    before = prompts_of(shards := ingest_job(job, replicas=1))
    lease = store.claim_shard(job.lease, 1, owner="w")
    assert lease is not None
    Path(shards[0].uri).unlink()
    after = ingest_job(resumed(store, job), replicas=4)
    assert [(one.offset, one.length) for one in after] == [(one.offset, one.length) for one in shards]
    assert prompts_of(after) == before
    assert ingest_job(resumed(store, job), replicas=4) == after  # it is there now, though not this driver's


@pytest.mark.parametrize("change", [_as_long, _longer, _longer_and_shorter, lambda rows: rows.pop()])
def test_it_is_not_when_the_input_gives_other_rows_by_now(
    change: Callable[[list[dict[str, Any]]], object], job: OpenJob, store: Store, job_input: Path
) -> None:
    shards = ingest_job(job, replicas=1)
    Path(shards[0].uri).unlink()
    _edit(job_input, change)
    with pytest.raises(
        JobChangedError, match=r"requests-1.jsonl.*are gone.*other rows.*--job-id.*`dray export job"
    ):
        ingest_job(resumed(store, job), replicas=1)
    assert store.shards("job") == shards
    assert spool_files(job) == []


def test_a_job_whose_digest_nobody_noted_is_refused(
    job: OpenJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was taken in by an earlier version."""
    with monkeypatch.context() as earlier:
        earlier.setattr(Store, "merge_job_info", lambda *_: None)
        shards = ingest_job(job, replicas=1)
    Path(shards[0].uri).unlink()
    with pytest.raises(JobChangedError, match="--job-id"):
        ingest_job(resumed(store, job), replicas=1)


def test_nobody_misses_the_spool_of_a_job_that_is_done(job: OpenJob, store: Store, job_input: Path) -> None:
    shards = ingest_job(job, replicas=1)
    expire(store, job)
    Path(shards[0].uri).unlink()
    job_input.unlink()
    assert len(ingest_job(resumed(store, job), replicas=1)) == len(shards)
