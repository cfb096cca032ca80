"""End a job: write its outputs from the store, account for it, and render its report.

A cancelled job publishes nothing: its rows are in the store, and `dray export` writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dray.errors import StoreFatalError
from dray.job.ending.publishing import job_drafts, publish
from dray.job.ending.reporting import ReplicaAccount, file_line, report_data
from dray.job.ending.result import JobResult, result_of
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob, reopen
from dray.job.rows.spooling import kept_of, remove_older
from dray.report import Measures, ReportData, Tally, Tokens, render_html
from dray.requests.outputs.files import fill
from dray.storage.layout import REPORT
from dray.store import JobState, Progress, Store, StoredOutcome
from dray.triggers import Point, reach

_MOST_READ = 500_000  # finished rows of a cancelled job: they take some 6 s


def cancelled_message(job: OpenJob) -> str:
    """What to tell of a job that was cancelled: it has no files."""
    return (
        f"job {job.job_id} was cancelled; its finished rows are kept, and "
        f"`{job.command('export', ' --output FOLDER')}` writes them to files"
    )


def finalise_job(
    job: OpenJob,
    timeline: Timeline,
    replicas: Sequence[ReplicaAccount] = (),
    *,
    state: JobState = JobState.COMPLETED,
) -> JobResult:
    """Write outputs and report, and move the job to ``state``. Doing it twice gives the same output bytes.

    A run that found every row finished leaves the job's result and report in the store as they are, but for
    the places of its files, and for dollars where no price was known. A job that is cancelled gets a result
    and a report in the store, and no files.

    Raises:
        FencedError: another driver has the job; nothing more is published.
        JobFailedError: the files cannot be written, or the folder was given to another job.
        StoreFatalError: rows and counters do not add up; nothing is published.
    """
    with reopen(job) as store:
        if state is JobState.COMPLETED:
            _check(store, job.job_id)
            store.set_job_state(job.lease, JobState.FINALIZING)
        reach(Point.FINALISE_BEFORE)
        outcomes = _Outcomes(store, job)
        if state is JobState.CANCELLED:
            store.set_job_state(job.lease, state)  # first: the process of a cancelled run may soon be killed
            result = _account(store, job, outcomes, timeline, replicas)
        else:
            result = _publish(store, job, outcomes, timeline, replicas, state)
        # Of drivers that stood still while they took rows in.
        recorded = store.get_job(job.job_id)
        remove_older(job, recorded, store.shards(job.job_id), kept_of(recorded))
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
        """All outcomes from the first one on, which begins the tally anew."""
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
            written = fill(
                drafts,
                outcomes,
                format=settings.format,
                kept=kept_of(store.get_job(job.job_id), settings.objects),
                part_bytes=settings.request.part_bytes,
            )
        files = tuple(file_line(written, stem, settings.format) for stem in ("output", "errors"))
        measures = outcomes.tally.snapshot()
        data = report_data(store, job, measures, timeline, replicas, files, state)
        report = drafts.open(REPORT)
        result = result_of(data, written, report.uri)
        told = _told(store, job, state)
        kept, shown = (result.as_dict(), data) if told is None else _told_again(told, result, data)
        report.write(render_html(shown).encode())
        publish(store, job, drafts, _summary(kept, shown))
    return result


def _account(
    store: Store,
    job: OpenJob,
    outcomes: _Outcomes,
    timeline: Timeline,
    replicas: Sequence[ReplicaAccount],
) -> JobResult:
    """What a cancelled job came to. If its rows are very many, the store's counters tell it."""
    with timeline.phase("finalise"):
        measures = _counted(store.progress(job.job_id))
        if measures.rows <= _MOST_READ:
            for _ in outcomes:
                pass
            measures = outcomes.tally.snapshot()
    data = report_data(store, job, measures, timeline, replicas, (), JobState.CANCELLED)
    result = result_of(data, None, None)
    store.set_job_summary(job.lease, _summary(result.as_dict(), data))
    return result


def _counted(known: Progress) -> Measures:
    """Rows and tokens alone, without a look at the rows."""
    counts = known.counts
    return Measures(
        rows=counts.done + counts.failed,
        failed=counts.failed,
        tokens=Tokens(
            prompt=known.prompt_tokens, cached=known.cached_tokens, completion=known.completion_tokens
        ),
    )


def _summary(result: Mapping[str, Any], data: ReportData) -> dict[str, Any]:
    return {"result": dict(result), "report": data.to_json()}


def _told(store: Store, job: OpenJob, state: JobState) -> tuple[Mapping[str, Any], ReportData] | None:
    """Result and report of the run that ended the job, where this one had no row to run."""
    found = store.get_job(job.job_id).summary
    if "report" not in found or job.skipped < store.counts(job.job_id).total:
        return None
    report = ReportData.from_json(found["report"])
    return (found["result"], report) if report.state == state else None


def _told_again(
    told: tuple[Mapping[str, Any], ReportData], result: JobResult, data: ReportData
) -> tuple[dict[str, Any], ReportData]:
    """They, with the places of the files that this run wrote, and dollars where none were known."""
    kept, report = dict(told[0]), replace(told[1], files=data.files)
    kept.update(output=result.output, errors=result.errors, report=result.report)
    if data.account is not None and report.account is not None and report.account.dollars is None:
        account = replace(data.account, predicted=report.account.predicted)
        report, kept["cost"] = replace(report, account=account), account.as_dict()
    return kept, report


def _check(store: Store, job_id: str) -> None:
    """Rows and counters agree, and no row is missing: checked before anything is published."""
    counts = store.verify_counts(job_id)
    if counts.pending:
        raise StoreFatalError(f"job {job_id}: {counts.pending} of {counts.total} rows have no outcome")
