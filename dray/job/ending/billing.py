"""A job's bill, from what its drivers said of its nodes."""

from __future__ import annotations

import socket
from dataclasses import replace

from dray.account import Account, Predicted, account_of, closing
from dray.account.spans import MICRO
from dray.job.open_job import OpenJob
from dray.job.pricing import source_of, with_price
from dray.report import Tokens
from dray.store import Store


def bill_job(store: Store, job: OpenJob, tokens: Tokens) -> Account | None:
    """The bill of all runs of a job up to now; None where no node is known to have worked for it.

    Raises:
        StoreError: it is away.
        FencedError: another driver has the job.
    """
    spans = store.spans(job.job_id)
    if not spans:
        return None
    epoch = job.lease.epoch
    rest = closing(spans, epoch=epoch, host=socket.gethostname(), now=job.clock())
    if rest:
        spans += rest
        store.put_spans(job.lease, [span for span in spans if span.epoch == epoch])
    given = job.settings.request.price
    return account_of(
        with_price(spans, given),
        source=source_of(given),
        tokens=(tokens.prompt, tokens.cached, tokens.completion),
    )


def with_prediction(account: Account, found: Predicted | None, *, nodes: float) -> Account:
    """The bill beside what was predicted, in dollars too where all nodes have one price."""
    if found is not None and account.price is not None:
        found = replace(found, dollars=found.seconds * nodes * account.price / MICRO / 3600)
    return replace(account, predicted=found)
