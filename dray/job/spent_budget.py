"""What the store keeps of a budget that is spent: without a higher one, another run would pause at once."""

from __future__ import annotations

from dray.store import Job

SPENT = "spent_budget"
"""Where a job's ``info`` has the budget, in dollars, that its driver found spent.

What the next look would have cost was counted in, so a little of it is left by the spans alone.
"""


def has_spent_budget(job: Job) -> bool:
    """Whether the budget that the job's last run had is spent."""
    budget = (job.settings.get("recipe") or {}).get("budget")
    found = job.info.get(SPENT)
    return budget is not None and found is not None and budget <= found
