"""A job whose time is over: every row has an outcome, whoever held its shard, and it stays expired."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dray.driver.whole_job import end_state
from dray.errors import FencedError, StoreFatalError
from dray.job.beginning.opening import open_job
from dray.job.ending.expiring import expire
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.report import ReportData
from dray.requests.model import Outcome
from dray.requests.sources import source_of
from dray.store import Counts, JobState, ShardLease, ShardState, Store, open_store

pytestmark = pytest.mark.unit

MakeSettings = Callable[..., JobSettings]


def opened(settings: JobSettings) -> OpenJob:
    """A job with its rows taken in, whose time runs from then on."""
    job = open_job(replace(settings, completion_window=None))
    ingest_job(job, replicas=1)
    with open_store(settings.store_url, create=False) as store:
        store.set_expiry(job.lease, settings.completion_window)
    return job


def release(job: OpenJob) -> None:
    with open_store(job.settings.store_url, create=False) as store:
        store.release_job(job.lease)


def test_the_command_of_an_expired_job_repeated(make_settings: MakeSettings) -> None:
    job = opened(make_settings(completion_window=0.001))
    with open_store(job.settings.store_url, create=False) as store:
        expire(store, job)
    first = finalise_job(job, Timeline(), state=JobState.EXPIRED)
    release(job)
    for window in (0.001, None):
        again = opened(make_settings(completion_window=window))
        assert end_state(again) is JobState.EXPIRED
        result = finalise_job(again, Timeline(), state=JobState.EXPIRED)
        release(again)
        assert (result.state, result.counts["failed"]) == ("expired", 50)
        assert result.counts["done"] == first.counts["done"] == 0
    with open_store(job.settings.store_url, create=False) as store:
        kept = store.get_job(job.job_id)
    assert kept.state is JobState.EXPIRED
    assert ReportData.from_json(kept.summary["report"]).state == "expired"


def test_a_crash_while_rows_expire_is_gone_on_from(make_settings: MakeSettings) -> None:
    job = opened(make_settings(completion_window=0.001, shard_rows=10))
    with (
        pytest.MonkeyPatch.context() as patch,
        open_store(job.settings.store_url, create=False) as store,
        pytest.raises(KeyboardInterrupt),
    ):
        patch.setattr("dray.job.ending.expiring.publish", _crash)
        expire(store, job)
    release(job)
    again = opened(make_settings(completion_window=None))
    with open_store(job.settings.store_url, create=False) as store:
        assert store.get_job(job.job_id).state is JobState.IN_PROGRESS
        assert not store.stop_signals(job.job_id).stop
    release(again)


def _crash(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def job(make_settings: Callable[..., JobSettings]) -> OpenJob:
    opened = open_job(make_settings(shard_rows=10))
    assert len(ingest_job(opened, replicas=1)) == 5
    return opened


@pytest.fixture
def store(job: OpenJob) -> Iterator[Store]:
    with open_store(job.settings.store_url, create=False) as opened:
        yield opened


def _held(store: Store, job: OpenJob, number: int) -> ShardLease:
    lease = store.claim_shard(job.lease, number, owner="worker")
    assert lease is not None
    return lease


def _answers(*indexes: int) -> list[Outcome]:
    return [Outcome(index, f"row-{index}", b"{}") for index in indexes]


def test_rows_of_shards_that_are_still_held_expire_too(job: OpenJob, store: Store) -> None:
    held = _held(store, job, 1)
    store.commit(held, _answers(10, 13))
    expire(store, job)
    counts = store.verify_counts(job.job_id)
    assert (counts.done, counts.failed, counts.pending) == (2, 48, 0)
    assert {shard.state for shard in store.shards(job.job_id)} == {ShardState.DONE}
    with pytest.raises(FencedError):
        store.commit(held, _answers(11))
    assert [one.cause for one in store.attempts(job.job_id) if one.owner == "worker"] == ["CANCEL"]
    expire(store, job)  # nothing is left to do
    assert store.verify_counts(job.job_id) == counts


def test_a_shard_that_is_taken_meanwhile_is_taken_back(
    job: OpenJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a worker that asked before it heard that the time is over."""
    claim, late = store.claim_shard, iter([True])

    def claim_late(*arguments: object, **options: object) -> ShardLease | None:
        if next(late, False):
            _ = claim(job.lease, 0, owner="worker")
        return claim(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "claim_shard", claim_late)
    expire(store, job)
    assert store.verify_counts(job.job_id).pending == 0


def test_a_job_with_rows_left_is_not_expired(
    job: OpenJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "counts", lambda _: Counts(total=50, done=0, failed=49))
    with pytest.raises(StoreFatalError, match="1 of 50 rows have no outcome"):
        expire(store, job)


def test_a_driver_that_was_replaced_ends_nothing(job: OpenJob, store: Store) -> None:
    store.claim_job(job.job_id, "another", takeover=lambda _: True)
    with pytest.raises(FencedError):
        expire(store, job)
    assert store.counts(job.job_id).failed == 0


def test_rows_that_follow_another_share_its_fate(
    make_settings: Callable[..., JobSettings], tmp_path: Path
) -> None:
    """Also where the driver was killed before they had it."""
    path = tmp_path / "repeated.jsonl"
    body = {"prompt": "x", "temperature": 0}
    lines = [{"custom_id": f"row-{n}", "url": "/v1/completions", "body": body} for n in range(3)]
    lines += [line | {"custom_id": f"other-{n}", "body": body | {"n": 2}} for n, line in enumerate(lines)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    settings = make_settings()
    request = JobRequest(input=[], model="", output="", dedupe=True)
    job = open_job(replace(settings, source=source_of([str(path)]), request=request))
    ingest_job(job, replicas=1)
    with open_store(job.settings.store_url, create=False) as store:
        store.commit(_held(store, job, 0), _answers(0))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("dray.job.ending.expiring.answer_followers", _crash)
            expire(store, job)
        assert store.counts(job.job_id) == Counts(total=6, done=1, failed=1)
        release(job)
        again = open_job(job.settings)
        assert end_state(again) is JobState.EXPIRED
        assert store.verify_counts(job.job_id) == Counts(total=6, done=3, failed=3)
        codes = {row.index: row.error_code for page in store.outcomes(job.job_id) for row in page}
    assert codes == {0: None, 1: None, 2: None, 3: "expired", 4: "expired", 5: "expired"}
    release(again)
