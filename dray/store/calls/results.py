"""The store's calls that read results and count them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dray.errors import StoreFatalError
from dray.requests.outputs.kept import KEPT_COLUMNS, Kept
from dray.requests.sharing import Answer
from dray.store import counting, jobs, reading
from dray.store.calls.base import Calls
from dray.store.database.connection import Tx
from dray.store.frame import frame_of
from dray.store.records import Counts, Job, Progress, StoredOutcome

if TYPE_CHECKING:
    import pandas as pd


class ResultCalls(Calls):
    """Counts and outcomes."""

    def counts(self, job_id: str) -> Counts:
        """Rows by outcome, from the shards' counters. All 0 until ingest has finished."""
        return self.progress(job_id).counts

    def progress(self, job_id: str) -> Progress:
        """Counts and tokens, from the shards' counters."""
        key = self._key(job_id)
        return self._read(lambda tx: reading.progress(tx, key), snapshot=True, long=False)

    def verify_counts(self, job_id: str) -> Counts:
        """Count the rows themselves, and prove that each custom_id stands once. O(rows): for the end.

        In transactions of 5000 rows: writers are not held up.

        Raises:
            StoreFatalError: the shards' counters say otherwise, or a custom_id stands twice.
        """
        key = self._key(job_id)
        counted, kept = counting.recount(self._read, lambda: self.counts(job_id), key, self._database.name)
        if counted != kept:
            raise StoreFatalError(f"job {job_id!r}: its rows give {counted}, its counters {kept}")
        return counted

    def outcomes(self, job_id: str, *, after: int = -1, batch: int = 2000) -> Iterator[list[StoredOutcome]]:
        """All outcomes with an index above ``after``, in order, ``batch`` at a time.

        A transaction per page: memory stays constant, and writers are not held up.

        Raises:
            UnknownJobError: no such job, or it was deleted meanwhile: what was read is not all of it.
        """
        seen = self.get_job(job_id)

        def next_page(tx: Tx) -> list[StoredOutcome]:
            found = reading.page(tx, seen.key, after, batch)
            jobs.check_present(tx, seen)
            return found

        while page := self._read(next_page):
            yield page
            after = page[-1].index

    def reused_indexes(self, job_id: str) -> Iterator[int]:
        """Indexes of the rows that have an answer of an earlier job, ascending, a transaction per page."""
        key = self._key(job_id)
        last: int | None = -1
        while last is not None:
            page, last = self._read(partial(reading.reused, job_key=key, after=last))
            yield from page

    def answered_indexes(self, job_id: str, indexes: Sequence[int]) -> set[int]:
        """Which of ``indexes`` have an answer: error rows have none."""
        key = self._key(job_id)
        return self._read(lambda tx: set(reading.answered(tx, key, indexes)))

    def error_codes(self, job_id: str, indexes: Sequence[int]) -> dict[int, str]:
        """The error codes of those of ``indexes`` that are error rows."""
        key = self._key(job_id)
        return self._read(lambda tx: reading.error_codes(tx, key, indexes))

    def answers(self, seen: Job, indexes: Sequence[int]) -> dict[int, Answer | None]:
        """The answers to the first of some rows of a job, so many as fit into memory, and one at least.

        None stands for a row without an answer: also of a job that was deleted since it was ``seen``.
        """
        return self._read(lambda tx: reading.answers(tx, seen, indexes), snapshot=True)

    def to_dataframe(self, job_id: str, *, kept: bool = True) -> pd.DataFrame:
        """All outcomes as a DataFrame with the columns of :class:`StoredOutcome`; responses as JSON.

        ``text`` is that of the first choice, as in ``output.parquet``; None where an answer has no text. The
        columns that the job ``kept`` come last. They are in a file, and not in the store.

        Raises:
            JobFailedError: that file is gone, or not on this machine.
        """
        found = self.get_job(job_id).info.get(KEPT_COLUMNS) if kept else None
        there = None if found is None else Kept.from_dict({**found, "uri": self.now_at(found["uri"])})
        return frame_of(self.outcomes(job_id), there)
