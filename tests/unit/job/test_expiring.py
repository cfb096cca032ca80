"""A job whose time is over stays expired, however often its command is repeated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dray.job.expiring import expire
from dray.job.finalising import finalise_job
from dray.job.ingesting import ingest_job
from dray.job.opening import OpenJob, open_job
from dray.job.settings import JobSettings
from dray.job.timeline import Timeline
from dray.report import ReportData
from dray.store import JobState, open_store
from flows.batch_inference import _end_state

pytestmark = pytest.mark.unit

MakeSettings = Callable[..., JobSettings]


def opened(settings: JobSettings) -> OpenJob:
    job = open_job(settings)
    ingest_job(job, replicas=1)
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
        assert _end_state(again) is JobState.EXPIRED
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
        patch.setattr("dray.job.expiring.publish", _crash)
        expire(store, job)
    release(job)
    again = opened(make_settings(completion_window=None))
    with open_store(job.settings.store_url, create=False) as store:
        assert store.get_job(job.job_id).state is JobState.IN_PROGRESS
        assert not store.orders(job.job_id).stop
    release(again)


def _crash(*_: object) -> None:
    raise KeyboardInterrupt
