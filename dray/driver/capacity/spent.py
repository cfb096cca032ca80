"""What earlier runs of a job cost, and whether they spent its budget: known before a cluster starts."""

from __future__ import annotations

from collections.abc import Sequence

from dray.account import Span, account_of
from dray.errors import JobBlockedError
from dray.job.open_job import OpenJob
from dray.job.pricing import with_price
from dray.job.spent_budget import SPENT
from dray.store import Store


def refuse_spent(store: Store, job: OpenJob) -> None:
    """Refuse a job to which its budget leaves nothing after earlier runs.

    Raises:
        JobBlockedError: says how to go on.
        StoreError: the store is away.
    """
    budget = job.settings.request.budget
    if budget is None:
        return
    found = store.get_job(job.job_id).info.get(SPENT)
    dollars, _ = dollars_of(job, store.spans(job.job_id))
    if found is not None and budget <= found:
        raise spent_error(job)
    if dollars >= budget:
        store.merge_job_info(job.lease, {SPENT: budget})
        raise spent_error(job)


def dollars_of(job: OpenJob, spans: Sequence[Span]) -> tuple[float, bool]:
    """What earlier runs cost, in dollars, and whether that is all of it.

    Spans of nodes that had no price then are counted by the price that the user gives now, if at all.
    """
    priced = with_price(spans, job.settings.request.price)
    counted = [span for span in priced if span.price is not None]
    return account_of(counted).dollars or 0.0, len(counted) == len(priced)


def spent_error(job: OpenJob) -> JobBlockedError:
    """What ends a job whose budget is spent."""
    return JobBlockedError(
        f"the budget of ${job.settings.request.budget:,.2f} is spent; finished rows are kept: "
        f"`{job.command('resume', ' --budget DOLLARS')}` with a higher budget goes on"
    )
