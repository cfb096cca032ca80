"""What a job computes once: its options, what ingest found, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dray.job.beginning.engine_versions import REUSED_VERSION, version_here
from dray.job.beginning.prompt_day import told_day
from dray.job.open_job import OpenJob
from dray.job.rows.reusing import TEMPLATE, EarlierAnswers, served_name, template_digest_of
from dray.job.rows.spooling import REUSED_AT
from dray.requests.ingest import Ingested
from dray.requests.sameness import told_doubts
from dray.requests.sharing import Sharing
from dray.store import Job, Store

SHARED = "shared"
"""Where a job's ``info`` has what was shared at ingest: the options, and what came of them.

Absent where a job of an earlier version of dray asked for neither.
"""


def has_followers(recorded: Job) -> bool:
    """Whether rows of the job may follow another."""
    return bool(recorded.info.get(SHARED, {}).get("followers"))


def sharing_of(store: Store, job: OpenJob, recorded: Job, say: Callable[[str], None] | None) -> Sharing:
    """What ingest is to share. A spool that is written again holds the rows that it held.

    ``say`` hears how much is to be read of earlier jobs, before it is.
    """
    settings, request = job.settings, job.settings.request
    model = served_name(settings.engine, settings.model, settings.defaults.model_name)
    if recorded.total is None:
        earlier = EarlierAnswers(store, job, recorded, say) if request.reuse else None
        return Sharing(dedupe=request.dedupe, earlier=earlier, model=model)
    known = recorded.info.get(SHARED, {})
    settled = _Reused(store, job.job_id) if known.get("reused") else ()
    return Sharing(dedupe=known.get("dedupe", False), settled=settled, model=model)


class _Reused:
    """Indices of the job's rows that an earlier job has answered; can be read again and again."""

    def __init__(self, store: Store, job_id: str) -> None:
        self._store = store
        self._job_id = job_id

    def __iter__(self) -> Iterator[int]:
        return self._store.reused_indexes(self._job_id)


def record_of(job: OpenJob, ingested: Ingested, sharing: Sharing) -> dict[str, Any]:
    """What the job's ``info`` is to have of it, and what later jobs compare before they take its answers.

    All of it, always: a run with other options may have died after it wrote these keys.
    """
    request, shared = job.settings.request, ingested.shared
    notes = sharing.earlier.notes if isinstance(sharing.earlier, EarlierAnswers) else []
    found = {"followers": shared.followers, "reused": shared.reused, "doubts": dict(shared.doubts)}
    return {
        TEMPLATE: template_digest_of(job.settings),
        REUSED_AT: shared.reused_uri,
        REUSED_VERSION: version_here(job.settings.engine) if shared.reused else None,  # that of its sources
        SHARED: {"dedupe": request.dedupe, "reuse": request.reuse, "notes": notes, **found},
    }


def told_of(job: OpenJob, recorded: Job) -> Sequence[str]:
    """Lines that say what needs no engine, and which rows were left alone."""
    request = job.settings.request
    known = recorded.info.get(SHARED, {"dedupe": False, "reuse": False})
    lines = [
        f"{name} stays {'on' if known[name] else 'off'}, as when the rows were read; give another --job-id "
        "to change that"
        for name in ("dedupe", "reuse")
        if known[name] != getattr(request, name)
    ]
    lines += told_day(job)
    if known["dedupe"]:
        lines.append(f"dedupe: {known['followers']:,} of {recorded.total:,} rows repeat another row")
    if known["reuse"]:
        rows = f"{known['reused']:,} of {recorded.total:,} rows"
        lines.append(f"reuse: {rows} have an answer of an earlier job")
        lines += [f"reuse: {note}" for note in known["notes"]]
    left = told_doubts(known.get("doubts", {}).items())
    if left:
        advice = "; --dedupe always shares sampled answers too" if "sampled" in known["doubts"] else ""
        lines.append(f"each computed by itself: {', '.join(left)}{advice}")
    return lines
