"""A job whose requests are in parts: shards lie in one each, and a part that is lost is written again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.errors import CancelledError, FencedError, JobChangedError
from dray.job.beginning.opening import open_job
from dray.job.deleting import delete_job
from dray.job.ending.expiring import expire
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.job.rows import ingesting, spooling
from dray.job.rows.ingesting import ingest_job
from dray.job.rows.spooling import DIGEST
from dray.requests.ingest import ingest
from dray.requests.model import Outcome
from dray.requests.spool.spool import decode, read_shard
from dray.shard.open_rows import Finished
from dray.shard.splitting import parts_of
from dray.store import JobState, Shard, Store, open_store
from tests.support.spools import prompts_of, resumed, spool_files

pytestmark = pytest.mark.unit

ROWS = 50
PART_BYTES = 1700
"""Eleven rows of the test job: it has five parts."""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooling, "PART_BYTES", PART_BYTES)


@pytest.fixture
def job(make_settings: Callable[..., JobSettings]) -> OpenJob:
    return open_job(make_settings(shard_rows=7, job_id="job"))


@pytest.fixture
def store(job: OpenJob) -> Iterator[Store]:
    with open_store(job.settings.store_url, create=False) as opened:
        yield opened


def names(epoch: int, count: int) -> list[str]:
    return sorted([f"requests-{epoch}.jsonl", *(f"requests-{epoch}-{n:05d}.jsonl" for n in range(1, count))])


def parts_in(shards: list[Shard]) -> list[str]:
    """The parts that shards lie in, in order."""
    return list(dict.fromkeys(shard.uri for shard in shards))


def cuts(shards: list[Shard]) -> list[tuple[int, int, int, int]]:
    return [(one.offset, one.length, one.rows, one.first_position) for one in shards]


EXPECTED = [f"prompt {number}" for number in range(ROWS)]


def test_shards_lie_in_one_part_each(job: OpenJob, store: Store) -> None:
    shards = ingest_job(job, replicas=1)
    uris = parts_in(shards)
    assert len(uris) == 5
    assert spool_files(job) == names(1, 5)
    assert all(Path(uri).stat().st_size <= PART_BYTES for uri in uris)
    assert prompts_of(shards) == EXPECTED
    assert [one.number for one in shards] == list(range(len(shards)))
    assert max(one.rows for one in shards) <= 8
    assert store.get_job("job").info[DIGEST].endswith(" in parts of 1700")
    assert ingest_job(resumed(store, job), replicas=1) == shards


def test_a_small_job_looks_as_it_did(job: OpenJob, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooling, "PART_BYTES", 1 << 20)
    ingest_job(job, replicas=1)
    assert spool_files(job) == ["requests-1.jsonl"]
    assert len(store.get_job("job").info[DIGEST]) == 64


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("number", [0, 2, 4])
@pytest.mark.parametrize("bound_by_now", [PART_BYTES, 100, 1 << 20])
def test_a_part_that_is_lost_is_written_again(
    job: OpenJob, store: Store, number: int, bound_by_now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the parts that were noted, whatever the bound is by now: shards keep their bytes."""
    before = ingest_job(job, replicas=1)
    Path(parts_in(before)[number]).unlink()
    monkeypatch.setattr(spooling, "PART_BYTES", bound_by_now)
    after = ingest_job(resumed(store, job), replicas=4)
    assert cuts(after) == cuts(before)
    assert prompts_of(after) == EXPECTED
    assert spool_files(job) == names(2, 5)  # the other parts of the one that was lost are gone
    assert ingest_job(resumed(store, job), replicas=4) == after


@pytest.mark.parametrize("number", [0, 4])
def test_a_part_that_is_cut_short_is_written_again(job: OpenJob, store: Store, number: int) -> None:
    """Every later run failed at its first missing byte, and asked for a new job."""
    before = ingest_job(job, replicas=1)
    cut = Path(parts_in(before)[number])
    os.truncate(cut, cut.stat().st_size - 1)
    after = ingest_job(resumed(store, job), replicas=1)
    assert cuts(after) == cuts(before)
    assert prompts_of(after) == EXPECTED
    assert spool_files(job) == names(2, 5)


def test_a_part_that_no_open_shard_is_in_is_not_missed(job: OpenJob, store: Store, job_input: Path) -> None:
    shards = ingest_job(job, replicas=1)
    first = [one for one in shards if one.uri == shards[0].uri]
    for one in first:
        lease = store.claim_shard(job.lease, one.number, owner="w")
        assert lease is not None
        rows = [decode(line) for chunk in read_shard(one.uri, one.offset, one.length) for line in chunk]
        store.commit(lease, [Outcome(row.index, row.custom_id, b"{}") for row in rows])
        store.finish_shard(lease)
    Path(shards[0].uri).unlink()
    job_input.unlink()
    assert len(ingest_job(resumed(store, job), replicas=1)) == len(shards)


def test_splits_of_shards_move_with_their_part(job: OpenJob, store: Store) -> None:
    shards = ingest_job(job, replicas=1)
    whole = shards[-2]
    lease = store.claim_shard(job.lease, whole.number, owner="w")
    assert lease is not None
    halves = parts_of(whole, Finished.of(store, "job", 0), None)
    store.split_shard(lease, halves, cause="ENGINE_CRASH", detail="", suspect=True)
    Path(shards[0].uri).unlink()
    after = ingest_job(resumed(store, job), replicas=1)
    assert cuts(after) == cuts(store.shards("job"))
    children = [one for one in after if one.number >= len(shards)]
    assert prompts_of(children) == prompts_of([after[-2 - len(children)]])
    assert {Path(one.uri).name[:11] for one in after} == {"requests-2-", "requests-2."}


def test_a_lost_part_is_not_replaced_by_other_rows(job: OpenJob, store: Store, job_input: Path) -> None:
    """What is left of the parts stays: an operator may bring the lost one back."""
    shards = ingest_job(job, replicas=1)
    lost = Path(parts_in(shards)[1])
    content = lost.read_bytes()
    lost.unlink()
    rows = [json.loads(line) for line in job_input.read_text().splitlines()]
    rows[40]["body"]["messages"][0]["content"] = "PROMPT 40"
    job_input.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(JobChangedError, match=r"requests-1-00001.jsonl.*are gone.*other rows.*--job-id"):
        ingest_job(resumed(store, job), replicas=1)
    assert spool_files(job) == [name for name in names(1, 5) if name != lost.name]
    lost.write_bytes(content)
    assert prompts_of(ingest_job(resumed(store, job), replicas=1)) == EXPECTED


def test_one_file_of_an_earlier_version_is_written_again_as_one(
    job: OpenJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large it is: it was noted without a bound."""
    with monkeypatch.context() as earlier:
        earlier.setattr(spooling, "PART_BYTES", None)
        before = ingest_job(job, replicas=1)
    assert spool_files(job) == ["requests-1.jsonl"]
    Path(before[0].uri).unlink()
    after = ingest_job(resumed(store, job), replicas=1)
    assert spool_files(job) == ["requests-2.jsonl"]
    assert cuts(after) == cuts(before)


def test_what_drivers_left_of_their_parts_goes(job: OpenJob, store: Store) -> None:
    """One that was stopped in the midst of its parts, went on when others were gone, and was killed."""
    work = Path(job.work)
    work.mkdir(parents=True)
    left = ["requests-1-00003.jsonl", "requests-1-00017.jsonl", ".requests-1-00018.jsonl.0123abcd.part"]
    left += ["requests-2.jsonl.rejects", ".requests-2.jsonl.rejects.0123abcd.part"]
    for name in left:
        (work / name).write_bytes(b"left")
    other = ["output-1.jsonl.part", "requests-9.jsonl", "requests-10-00001.jsonl", "requests-1.csv"]
    for name in other:  # drafts, and what drivers to come have
        (work / name).write_bytes(b"not older")
    driver = resumed(store, resumed(store, job))
    assert driver.lease.epoch == 3
    shards = ingest_job(driver, replicas=1)
    assert spool_files(job) == sorted([*other, *names(3, 5)])
    assert prompts_of(shards) == EXPECTED


def test_the_parts_of_who_is_replaced_go_and_those_that_are_read_stay(
    job: OpenJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[list[Shard]] = []

    def frozen(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(ingesting, "ingest", ingest)
        ingested = ingest(*arguments, **options)
        taken.append(ingest_job(resumed(store, job), replicas=1))
        assert spool_files(job) == names(2, 5)  # the new driver has removed them
        return ingest(*arguments, **options) if ingested else None

    monkeypatch.setattr(ingesting, "ingest", frozen)
    with pytest.raises(FencedError):
        ingest_job(job, replicas=1)
    assert store.shards("job") == taken[0]
    assert spool_files(job) == names(2, 5)
    assert prompts_of(taken[0]) == EXPECTED


def test_a_cancel_leaves_no_part(job: OpenJob, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver sees to it: a thread that hangs in a read, or in an upload, does not come to it."""

    def hangs(*_: Any, spool_uri: str, **__: Any) -> Any:
        Path(spool_uri).parent.mkdir(parents=True)
        Path(spool_uri).write_bytes(b"a part")
        Path(spool_uri.replace(".jsonl", "-00001.jsonl")).write_bytes(b"another one")
        raise CancelledError

    monkeypatch.setattr(ingesting, "ingest", hangs)
    with pytest.raises(CancelledError):
        ingest_job(job, replicas=1)
    assert spool_files(job) == []


def test_parts_left_behind_go_as_the_job_ends(job: OpenJob, store: Store) -> None:
    after = resumed(store, job)
    shards = ingest_job(after, replicas=1)
    (Path(job.work) / "requests-1-00002.jsonl").write_bytes(b"all of it")
    expire(store, after)
    finalise_job(after, Timeline(0.0), state=JobState.EXPIRED)
    assert spool_files(job) == names(2, 5)
    assert prompts_of(shards) == EXPECTED


def test_a_deletion_takes_all_parts(job: OpenJob, store: Store) -> None:
    ingest_job(job, replicas=1)
    sizes = sum(file.stat().st_size for file in Path(job.work).iterdir())
    store.release_job(job.lease)
    assert delete_job(store, "job").spool_bytes == sizes
    assert not Path(job.work).exists()
