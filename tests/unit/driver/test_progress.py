"""The shares of error rows that are told of, and the rates that other processes read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dray.driver.events import ErrorShareReached, Event, Progressed
from dray.driver.telling import progress
from dray.driver.telling.progress import ERROR_ROWS, ERROR_SHARES, ErrorShare, JobProgress
from dray.job.beginning.opening import open_job
from dray.job.open_job import reopen
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from tests.support.stores import claimed, failure, outcome

pytestmark = pytest.mark.unit


def test_a_few_rows_say_nothing() -> None:
    assert ErrorShare().reached(finished=ERROR_ROWS - 1, failed=ERROR_ROWS - 1) is None


def test_each_share_is_told_once_and_the_highest_of_several() -> None:
    share = ErrorShare()
    told = [share.reached(finished=100, failed=failed) for failed in (0, 1, 1, 2, 12, 12, 90, 100)]
    assert told == [None, 0.01, None, None, 0.1, None, 0.5, None]
    assert set(told) - {None} <= set(ERROR_SHARES)


def test_a_share_that_falls_and_rises_is_told_once() -> None:
    share = ErrorShare()
    assert share.reached(finished=20, failed=1) == 0.05
    assert share.reached(finished=1000, failed=1) is None
    assert share.reached(finished=1000, failed=60) is None


def test_a_look_tells_of_rows_rates_and_the_share_of_errors(
    make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PACE_EVERY", -1.0)
    job = open_job(make_settings())
    ingest_job(job, replicas=1)
    heard: list[Event] = []
    looking = JobProgress(job, heard.append)
    with reopen(job) as store:
        looking.look(store)
        held = claimed(store, job.lease)
        store.commit(held, [outcome(n) if n % 2 else failure(n) for n in range(20)])
        looking.look(store)
        looking.look(store, final=True)
        assert "pace" in store.get_job(job.job_id).info
    pulses = [event.pulse for event in heard if isinstance(event, Progressed)]
    assert [(pulse.finished, pulse.failed, pulse.total) for pulse in pulses] == [(0, 0, 50)] + [
        (20, 10, 50)
    ] * 2
    assert [event.final for event in heard if isinstance(event, Progressed)] == [False, False, True]
    [share] = [event for event in heard if isinstance(event, ErrorShareReached)]
    assert share == ErrorShareReached(reached=0.5, failed=10, finished=20, total=50)
