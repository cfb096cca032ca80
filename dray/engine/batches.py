"""What leaves an engine: answers of a bounded size, in micro-batches of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator

from dray.requests.model import Outcome

MAX_RESPONSE_BYTES = 256 * 1024 * 1024
"""The largest answer to one row. 2,048 embeddings of 4,096 numbers are 170 MB of JSON; a cell of SQLite holds
1,000,000,000 bytes, one of PostgreSQL 1 GiB."""
BATCH_BYTES = 32 * 1024 * 1024
"""Bytes of answers in one micro-batch, which is one message of Ray's and one transaction of the store's."""


def bounded(outcome: Outcome) -> Outcome:
    """``outcome``, or an error row where its answer is too large to be kept."""
    return outcome if size_of(outcome) <= MAX_RESPONSE_BYTES else too_large(outcome)


def too_large(outcome: Outcome) -> Outcome:
    """The error row in place of an answer. Its tokens still count: they were computed."""
    return outcome._replace(
        response=None,
        error_code="response_too_large",
        error_message=f"the answer has {size_of(outcome):,} bytes, more than can be kept: "
        "ask for fewer answers (`n`), tokens, log probabilities or inputs in one row",
    )


def size_of(outcome: Outcome) -> int:
    """The bytes of an answer; an error row counts as none."""
    return len(outcome.response or b"")


def cut(finished: list[Outcome]) -> Iterator[list[Outcome]]:
    """``finished`` in batches of up to `BATCH_BYTES`, or one row; none where there is none."""
    batch: list[Outcome] = []
    size = 0
    for outcome in finished:
        if batch and size + size_of(outcome) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(outcome)
        size += size_of(outcome)
    if batch:
        yield batch
