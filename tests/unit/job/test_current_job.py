"""The job that this process drives: the one opened last, and no other."""

from __future__ import annotations

import gc
import weakref
from typing import cast

import pytest

from dray.job import current_job
from dray.job.open_job import OpenJob

pytestmark = pytest.mark.unit


class _Job:
    """Stands for an open job, which holds settings and the manifest of its weights."""


def test_a_process_that_runs_job_after_job_keeps_the_latest() -> None:
    first, second = _Job(), _Job()
    kept = weakref.ref(first)
    try:
        for job in (first, second):
            current_job.note(cast("OpenJob", job))
        del job, first
        gc.collect()
        assert current_job.latest() is cast("OpenJob", second)
        assert kept() is None
    finally:
        current_job._driven.clear()
