"""What the store says of a job, as plain JSON values: ``dray status`` and its kin print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dray.job.driverless import is_undriven, no_driver
from dray.job.ending.retried import retries
from dray.job.pace import pace
from dray.job.spent_budget import has_spent_budget
from dray.places import short_name
from dray.report.progress import seconds_left
from dray.store import Job, Store

Facts = Mapping[str, Any]


def facts_of(store: Store, job: Job) -> dict[str, Any]:
    """How far a job is, how fast, on what, and what went wrong. Times are seconds since 1970.

    Costs a handful of reads. The database counts shards and attempts, and no result is read.

    Raises:
        UnknownJobError: another process has deleted the job meanwhile.
    """
    progress = store.progress(job.job_id)
    counts = progress.counts
    now = store.now()
    undriven = no_driver(job, now)
    rates = pace(job, now=now) if undriven is None else None  # what a driver wrote that is gone
    found = {
        "job_id": job.job_id,
        "state": str(job.state),
        "reason": job.reason,
        "budget_spent": has_spent_budget(job),
        "no_driver": undriven,
        "undriven": is_undriven(job, now),
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "cancel_requested": job.cancel_requested,
        "counts": {
            "total": counts.total,
            "done": counts.done,
            "failed": counts.failed,
            "pending": counts.pending,
        },
        "tokens": {
            "prompt": progress.prompt_tokens,
            "cached": progress.cached_tokens,
            "completion": progress.completion_tokens,
        },
        "rows_per_second": rates.rows if rates else None,
        "tokens_per_second": rates.tokens if rates else None,
        "seconds_left": seconds_left(counts.pending, rates.rows) if rates else None,
        "shards": store.shard_states(job.job_id),
        "replicas": [] if job.state.at_rest or undriven else _replicas(store, job.job_id),
        "retries": retries(store, job.job_id),
        "model": job.settings.get("model_at") or job.settings.get("model"),
        "output": _result(job).get("output"),
        "errors": _result(job).get("errors"),
        "report": _result(job).get("report"),
    }
    store.check_present(job)
    return found


def _result(job: Job) -> Mapping[str, Any]:
    return job.summary.get("result") or {}


def _replicas(store: Store, job_id: str) -> list[dict[str, Any]]:
    return [
        {
            "name": short_name(row.name),
            "state": str(row.state),
            "node": row.host,
            "note": row.note,
        }
        for row in store.replicas(job_id)
        if not row.state.over
    ]
