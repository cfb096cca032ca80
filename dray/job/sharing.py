"""What a job computes once: its options, what ingest found, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dray.job.opening import OpenJob
from dray.requests.ingest import Ingested
from dray.requests.sameness import told_doubts
from dray.requests.sharing import Sharing
from dray.store import Job, Store

SHARED = "shared"
"""Where a job's ``info`` has what was shared at ingest: the options, and how many rows follow another or were
reused.

Absent where the job asked for neither.
"""


def has_followers(recorded: Job) -> bool:
    """Whether rows of the job may follow another."""
    return bool(recorded.info.get(SHARED, {}).get("followers"))


def sharing_of(store: Store, job: OpenJob, recorded: Job) -> Sharing:
    """What ingest is to share. A spool that is written again holds the rows that it held."""
    request = job.settings.request
    if recorded.total is None:
        return Sharing(dedupe=request.dedupe)
    known = recorded.info.get(SHARED, {})
    settled = _Reused(store, job.job_id) if known.get("reused") else ()
    return Sharing(dedupe=known.get("dedupe", False), settled=settled)


class _Reused:
    """Indices of the job's rows that an earlier job has answered; can be read again and again."""

    def __init__(self, store: Store, job_id: str) -> None:
        self._store = store
        self._job_id = job_id

    def __iter__(self) -> Iterator[int]:
        return self._store.reused_indexes(self._job_id)


def record_of(job: OpenJob, ingested: Ingested) -> dict[str, Any]:
    """What the job's ``info`` is to have of it."""
    request, shared = job.settings.request, ingested.shared
    if not (request.dedupe or request.reuse):
        return {}
    found = {"followers": shared.followers, "reused": shared.reused, "doubts": dict(shared.doubts)}
    return {SHARED: {"dedupe": request.dedupe, "reuse": request.reuse, **found}}


def told_of(job: OpenJob, ingested: Ingested) -> list[str]:
    """For people: what needs no engine, and which rows were left alone."""
    request, shared = job.settings.request, ingested.shared
    lines = []
    if request.dedupe:
        lines.append(f"dedupe: {shared.followers:,} of {ingested.rows:,} rows repeat another row")
    if request.reuse:
        lines.append(f"reuse: {shared.reused:,} of {ingested.rows:,} rows have an answer of an earlier job")
    left = told_doubts(shared.doubts.items())
    if left:
        advice = "; --dedupe always shares sampled answers too" if "sampled" in shared.doubts else ""
        lines.append(f"computed each by itself: {', '.join(left)}{advice}")
    return lines
