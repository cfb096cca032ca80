"""The input of a job that ``dray resume`` goes on with: its rows are in the spool, so it needs no file.

Any other command names its input, and that is compared with what the job took in, also with ``--resume``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dray.errors import ConfigError, StoreError
from dray.job import current_job
from dray.job.options.settings import JobSettings
from dray.requests.reading.queries import query_name
from dray.requests.sources import Source, SqlQuery
from dray.store import Job, open_store

_INPUTS_SHOWN = 5


def input_named(source: Source) -> str:
    """What is read, as the store keeps it for people."""
    if isinstance(source, SqlQuery):
        return query_name(source)
    more = len(source.inputs) - _INPUTS_SHOWN
    return ", ".join(source.inputs[:_INPUTS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def input_as_begun(settings: JobSettings) -> str | None:
    """The digest of the input that the job has taken in, where ``dray resume`` goes on with it; else None.

    That command alone has its settings from the store (:func:`current_job.begun_before`). None also for
    settings with another input, which makes another job, for a job that has no rows yet, and for a query,
    whose digest is that of its text.
    """
    job_id = settings.job_id
    if job_id is None or not current_job.is_begun(job_id) or isinstance(settings.source, SqlQuery):
        return None
    job: Job | None = None
    with suppress(StoreError, ConfigError), open_store(settings.store_url, create=False) as store:
        job = store.find_job(job_id)
    if job is None or job.total is None:
        return None
    now = {"recipe": settings.recipe, "input": input_named(settings.source)}
    return job.fingerprint.input if _as_given(job.settings) == _as_given(now) else None


def _as_given(settings: Mapping[str, Any]) -> object:
    """The input as the user gave it: of a hub's data set, the rest of the settings names the day's commit."""
    return (settings.get("recipe") or {}).get("input") or settings.get("input")
