"""Whether a job has its budget spent already, before a cluster is started for it."""

from __future__ import annotations

from dray.account import account_of
from dray.errors import JobBlockedError
from dray.job.opening import OpenJob
from dray.store import Store, store_option

SPENT = "spent_budget"
"""Where a job's ``info`` has the budget, in dollars, that its driver found spent.

What the next look would have cost was counted in, so a little of it is left by the spans alone.
"""


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
    priced = [span for span in store.spans(job.job_id) if span.price is not None]
    if (found is not None and budget <= found) or (account_of(priced).dollars or 0.0) >= budget:
        raise spent_error(job)


def spent_error(job: OpenJob) -> JobBlockedError:
    """What ends a job whose budget is spent."""
    where = store_option(job.settings.store_url)
    return JobBlockedError(
        f"the budget of ${job.settings.request.budget:,.2f} is spent; finished rows are kept: `dray resume "
        f"{job.job_id} --budget DOLLARS{where}` with a higher budget goes on"
    )
