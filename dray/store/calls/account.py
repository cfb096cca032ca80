"""The store's calls about node time and efficiency."""

from __future__ import annotations

from collections.abc import Sequence

from dray.account import Span
from dray.store import accounts, jobs
from dray.store.accounts import Efficiency
from dray.store.calls.base import Calls
from dray.store.database.connection import Tx
from dray.store.records import JobLease


class AccountCalls(Calls):
    """What a job's nodes did, and how near to the prediction finished runs came."""

    def put_spans(self, lease: JobLease, spans: Sequence[Span]) -> None:
        """Replace what the nodes of this driver did; what earlier drivers said stays.

        Raises:
            FencedError: the job has another driver.
        """

        def put(tx: Tx) -> None:
            jobs.check_driver(tx, lease)
            accounts.put_spans(tx, lease, spans)

        self._write(put)

    def spans(self, job_id: str) -> list[Span]:
        """What the job's nodes did, as its drivers said."""
        key = self._key(job_id)
        return self._read(lambda tx: accounts.list_spans(tx, key))

    def committed_by_replica(self, job_id: str) -> dict[str, int]:
        """Rows that were answered by each replica, and are in the store."""
        key = self._key(job_id)
        return self._read(lambda tx: accounts.committed_by_replica(tx, key))

    def put_efficiency(self, measured: Efficiency) -> None:
        """Keep the efficiency of a run, for later plans. It outlives the job."""
        self._write(lambda tx: accounts.put_efficiency(tx, measured))

    def efficiencies(self, device: str | None = None) -> list[Efficiency]:
        """What the latest finished runs reached, of a device or of all, the latest first."""
        return self._read(lambda tx: accounts.list_efficiencies(tx, device))
