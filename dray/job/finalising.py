"""End a job: write its outputs from the store, account for it, and render its report.

A cancelled job publishes nothing: its rows are in the store, and `dray export` writes them.
"""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from typing import Any

from dray import __version__
from dray.account import Account
from dray.engine.protocol import EngineInfo
from dray.engine.tuning import Tuned
from dray.errors import StoreFatalError
from dray.job.billing import bill_job, with_prediction
from dray.job.capacity_notes import decisions_of
from dray.job.job_shape import job_sequences, job_shape
from dray.job.learning import FinishedRun, learn
from dray.job.opening import OpenJob, describe
from dray.job.publishing import job_drafts, publish
from dray.job.retried import retries
from dray.job.spooling import remove_older
from dray.job.timeline import Timeline
from dray.machine import cores
from dray.places import first_of, short_name
from dray.report import (
    Attempt,
    Counts,
    Decision,
    Measures,
    Moments,
    OutputFile,
    Replica,
    ReportData,
    Tally,
    render_html,
)
from dray.requests.output import Written, fill
from dray.storage.files import join
from dray.storage.layout import REPORT, manifest_name
from dray.store import INTERRUPTIONS, JobState, Store, StoredOutcome, open_store, store_option
from dray.triggers import Point, reach


@dataclass(frozen=True, kw_only=True)
class ReplicaAccount:
    """What is left of a replica: its start, and its counters when the driver last looked.

    ``busy_seconds`` is None where it died before that. ``info`` is what its engine said of itself, ``tuned``
    the limits that it found.
    """

    name: str
    node: str = ""
    engine: str = ""
    version: str = ""
    startup: dict[str, float] = field(default_factory=dict)
    moments: Moments | None = None
    busy_seconds: float | None = None
    rows: int = 0
    tokens: int = 0
    info: EngineInfo | None = None
    tuned: Tuned | None = None

    @property
    def ran_as(self) -> EngineInfo | None:
        """The engine with the limits that it ran under for most of the time."""
        if self.info is None or self.tuned is None:
            return self.info
        limits = self.tuned.limits
        return replace(self.info, max_num_seqs=limits.seqs, max_num_batched_tokens=limits.tokens)


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What a job came to; ``as_dict`` is what ``dray run --json`` prints.

    ``output`` and ``errors`` are each a file, or the pattern of several: ``output-*.jsonl``. ``saved`` has
    the rows that needed no engine, and their tokens; ``overflow`` those that did not fit, by what was done.
    ``tuned`` has the engine arguments that a replica found with ``--auto``, by its name; ``error_codes`` how
    many error rows have each code.
    """

    job_id: str
    state: str
    counts: dict[str, int]
    tokens: dict[str, int]
    seconds: dict[str, float]
    interruptions: int
    retries: dict[str, int]
    cost: dict[str, Any] | None
    output: str | None
    errors: str | None
    report: str | None
    saved: dict[str, int] = field(default_factory=dict)
    overflow: dict[str, int] = field(default_factory=dict)
    tuned: dict[str, dict[str, Any]] = field(default_factory=dict)
    error_codes: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(self.__dict__)


def cancelled_message(job: OpenJob) -> str:
    """What to tell of a job that was cancelled: it has no files."""
    return (
        f"job {job.job_id} was cancelled; its finished rows are kept, and `dray export {job.job_id} "
        f"--output FOLDER{store_option(job.settings.store_url)}` writes them to files"
    )


def finalise_job(
    job: OpenJob,
    timeline: Timeline,
    replicas: Sequence[ReplicaAccount] = (),
    *,
    state: JobState = JobState.COMPLETED,
) -> JobResult:
    """Write outputs and report, and move the job to ``state``. Doing it twice gives the same output bytes.

    A run that found every row finished leaves the job's result and report in the store as they are. A job
    that is cancelled gets a result and a report in the store, and no files.

    Raises:
        FencedError: another driver has the job; nothing more is published.
        JobFailedError: the files cannot be written, or the folder was given to another job.
        StoreFatalError: rows and counters do not add up; nothing is published.
    """
    settings = job.settings
    with open_store(settings.store_url, create=False) as store:
        if state is JobState.COMPLETED:
            _check(store, job.job_id)
            store.set_job_state(job.lease, JobState.FINALIZING)
        reach(Point.FINALISE_BEFORE)
        outcomes = _Outcomes(store, job)
        if state is JobState.CANCELLED:
            result = _account(store, job, outcomes, timeline, replicas)
        else:
            result = _publish(store, job, outcomes, timeline, replicas, state)
        remove_older(job, store.shards(job.job_id))  # of drivers that stood still while they took rows in
        store.set_job_state(job.lease, state)
        reach(Point.FINALISE_AFTER)
    return result


class _Outcomes:
    """A job's outcomes, and a tally of those that were read last."""

    def __init__(self, store: Store, job: OpenJob) -> None:
        self._store = store
        self._job = job
        self.tally = Tally(since=job.opened)

    def __iter__(self) -> Iterator[list[StoredOutcome]]:
        """From the first one on, which begins the tally anew."""
        self.tally = Tally(since=self._job.opened)
        for page in self._store.outcomes(self._job.job_id):
            yield page
            self.tally.observe(page)


def _publish(
    store: Store,
    job: OpenJob,
    outcomes: _Outcomes,
    timeline: Timeline,
    replicas: Sequence[ReplicaAccount],
    state: JobState,
) -> JobResult:
    with job_drafts(store, job) as drafts:
        with timeline.phase("finalise"):
            settings = job.settings
            written = fill(drafts, outcomes, format=settings.format, part_bytes=settings.request.part_bytes)
        files = tuple(_file(written, stem, settings.format) for stem in ("output", "errors"))
        data = _report_data(store, job, outcomes.tally, timeline, replicas, files, state)
        told = _told(store, job, state)
        report = drafts.open(REPORT)
        report.write(render_html(data if told is None else replace(told, files=data.files)).encode())
        result = _result(data, written, report.uri)
        publish(store, job, drafts, _summary(result, data) if told is None else None)
    return result


def _account(
    store: Store,
    job: OpenJob,
    outcomes: _Outcomes,
    timeline: Timeline,
    replicas: Sequence[ReplicaAccount],
) -> JobResult:
    """What a cancelled job came to."""
    with timeline.phase("finalise"):
        for _ in outcomes:
            pass
    data = _report_data(store, job, outcomes.tally, timeline, replicas, (), JobState.CANCELLED)
    result = _result(data, None, None)
    store.set_job_summary(job.lease, _summary(result, data))
    return result


def _summary(result: JobResult, data: ReportData) -> dict[str, Any]:
    return {"result": result.as_dict(), "report": data.to_json()}


def _told(store: Store, job: OpenJob, state: JobState) -> ReportData | None:
    """The report of the run that ended the job, where this one had no row to run and nothing to report."""
    found = store.get_job(job.job_id).summary.get("report")
    if found is None or job.skipped < store.counts(job.job_id).total:
        return None
    told = ReportData.from_json(found)
    return told if told.state == state else None


def _report_data(
    store: Store,
    job: OpenJob,
    tally: Tally,
    timeline: Timeline,
    replicas: Sequence[ReplicaAccount],
    files: tuple[OutputFile, ...],
    state: JobState,
) -> ReportData:
    measures = tally.snapshot()
    known = store.get_job(job.job_id)
    causes = retries(store, job.job_id)
    total = store.counts(job.job_id).total
    done = measures.rows - measures.failed
    return ReportData(
        job_id=job.job_id,
        state=str(state),
        generated_at=time.time(),
        created=known.created_at,
        started=timeline.began(),
        ended=timeline.clock(),
        model=job.settings.model,
        kind=", ".join(known.info.get("kinds", ())),
        engine=job.settings.engine,
        counts=Counts(
            total=total, done=done, failed=measures.failed, skipped=job.skipped,
            pending=total - measures.rows, skipped_failed=job.skipped_failed,
        ),
        tokens=measures.tokens,
        seconds=timeline.seconds(),
        measures=measures,
        phases=timeline.phases(),
        attempts=_attempts(store, job.job_id),
        replicas=_replicas(store, job.job_id, replicas),
        interruptions=sum(causes.get(cause, 0) for cause in INTERRUPTIONS),
        retries=causes,
        unused=_unused(store, job.job_id),
        decisions=tuple(Decision(at=one["at"], line=one["line"]) for one in decisions_of(known)),
        files=files,
        environment=_environment(replicas),
        settings={k: v if isinstance(v, str | int | float | bool) or v is None else str(v)
                  for k, v in describe(job.settings).items()},
        account=_bill(store, job, measures, timeline, replicas),
    )  # fmt: skip


def _bill(
    store: Store, job: OpenJob, measures: Measures, timeline: Timeline, replicas: Sequence[ReplicaAccount]
) -> Account | None:
    """The bill, with what was to be expected; this run's efficiency is kept for later ones."""
    account = bill_job(store, job, measures.tokens)
    last = max((phase.end for phase in timeline.phases() if phase.name == "inference"), default=None)
    infos = [info for one in replicas if (info := one.ran_as) is not None]
    ready = [one.moments.ready for one in replicas if one.moments is not None]
    if account is None or last is None or not infos or not ready:
        return account
    run = FinishedRun(
        identity=job.identity or job.job_id,
        epoch=job.lease.epoch,
        arguments=job.settings.engine_arguments,
        info=infos[0],
        work={one.name: (one.rows, one.busy_seconds or 0.0) for one in replicas},
        nodes=frozenset(one.node for one in replicas),
        began=timeline.began(),
        ready=min(ready),
        ended=last,
        shape=lambda: job_shape(job, store.shards(job.job_id)),
        sequences=lambda: job_sequences(job, store.shards(job.job_id)),
    )
    return with_prediction(account, learn(store, run, measures), nodes=len(run.nodes))


def _unused(store: Store, job_id: str) -> dict[str, str]:
    """Replicas of this run that no shard was finished on, by the reason that they had at the end."""
    finished = [attempt for attempt in store.attempts(job_id) if attempt.done + attempt.failed]
    worked = {first_of(attempt.replica or "") for attempt in finished}
    noted = {first_of(row.name): row.note for row in store.replicas(job_id) if row.note is not None}
    return {short_name(first): note for first, note in noted.items() if first not in worked}


def _check(store: Store, job_id: str) -> None:
    """Rows and counters agree, and no row is missing: checked before anything is published."""
    counts = store.verify_counts(job_id)
    if counts.pending:
        raise StoreFatalError(f"job {job_id}: {counts.pending} of {counts.total} rows have no outcome")


def _attempts(store: Store, job_id: str) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            shard=attempt.shard,
            epoch=attempt.epoch,
            replica=short_name(attempt.replica or ""),
            cause=(attempt.cause or "running").lower(),
            seconds=(attempt.ended_at or attempt.started_at) - attempt.started_at,
            rows=attempt.done + attempt.failed,
            started=attempt.started_at,
        )
        for attempt in store.attempts(job_id)
    )


def _replicas(store: Store, job_id: str, accounts: Sequence[ReplicaAccount]) -> tuple[Replica, ...]:
    """Rows are those that were committed: what a replica counted is lost with it."""
    rows: Counter[str | None] = Counter()
    for attempt in store.attempts(job_id):
        rows[attempt.replica] += attempt.done + attempt.failed
    return tuple(
        Replica(
            name=short_name(one.name),
            node=one.node,
            startup=one.startup,
            moments=one.moments,
            busy_seconds=one.busy_seconds or None,
            rows=rows[one.name],
            tokens_per_second=one.tokens / one.busy_seconds if one.busy_seconds else None,
            tuned=one.tuned.as_dict() if one.tuned is not None and one.tuned.candidates else {},
        )
        for one in accounts
    )


def _file(written: Written, stem: str, form: str) -> OutputFile:
    """One line of the report. Parts are one line, which leads to their manifest."""
    info, parts = written.whole(stem), written.parts(stem)
    folder, _, name = info.uri.rpartition("/")
    uri = join(folder, manifest_name(stem, form)) if parts else info.uri
    told = f"{name}, {len(parts)} files" if parts else name
    return OutputFile(name=told, uri=uri, size=info.size, sha256=info.sha256, rows=info.rows)


def _environment(replicas: Sequence[ReplicaAccount]) -> dict[str, str]:
    versions: dict[str, set[str]] = {}  # as the replicas say: the driver need not have an engine
    for replica in replicas:
        if replica.engine and replica.version != __version__:
            versions.setdefault(replica.engine, set()).add(replica.version)
    return {
        "dray": __version__,
        **{engine: ", ".join(sorted(found)) for engine, found in versions.items()},
        "python": platform.python_version(),
        "ray": metadata.version("ray"),  # the import would take half a second
        "platform": f"{platform.system()} {platform.machine()}, {cores()} cores",
        "implementation": sys.implementation.name,
    }


def _result(data: ReportData, written: Written | None, report: str | None) -> JobResult:
    counts = data.counts
    return JobResult(
        job_id=data.job_id,
        state=data.state,
        counts={
            "total": counts.total,
            "done": counts.done,
            "failed": counts.failed,
            "skipped": counts.skipped,
        },
        tokens={
            "prompt": data.tokens.prompt,
            "cached": data.tokens.cached,
            "completion": data.tokens.completion,
        },
        seconds=dict(data.seconds),
        interruptions=data.interruptions,
        retries=dict(data.retries),
        cost=data.account.as_dict() if data.account else None,
        output=written.output.uri if written else None,
        errors=written.errors.uri if written else None,
        report=report,
        saved=asdict(data.measures.saved),
        overflow=dict(data.measures.overflow),
        tuned={one.name: dict(one.tuned) for one in data.replicas if one.tuned},
        error_codes={one.code: one.count for one in data.measures.errors},
    )
