"""The driver's lease lives for as long as its block."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from dray.errors import JobBusyError
from dray.job.beginning import opening
from dray.job.beginning.opening import open_job
from dray.job.job_lease import job_lease_kept
from dray.job.options.settings import JobSettings
from dray.store import open_store

pytestmark = pytest.mark.unit


def test_a_lease_outlives_its_time_while_it_is_kept(
    make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "DRIVER_TTL", 1.0)
    job = open_job(make_settings())
    with open_store(job.settings.store_url, create=False) as store:
        with job_lease_kept(job):
            time.sleep(2.0)
            with pytest.raises(JobBusyError):
                store.claim_job(job.job_id, "another")
        time.sleep(1.2)
        assert store.claim_job(job.job_id, "another").epoch == job.lease.epoch + 1


def test_a_driver_that_lost_its_job_leaves_it_alone(make_settings: Callable[..., JobSettings]) -> None:
    job = open_job(make_settings())
    with open_store(job.settings.store_url, create=False) as store:
        store.claim_job(job.job_id, "another", takeover=lambda _: True)
        before = store.get_job(job.job_id).driver_until
        with job_lease_kept(replace(job, lease=replace(job.lease, ttl=0.2))):
            time.sleep(0.5)
        assert store.get_job(job.job_id).driver_until == before
