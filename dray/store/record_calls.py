"""The store's calls about what happened: attempts, notices, replicas, and what losses were charged to."""

from __future__ import annotations

from collections.abc import Sequence

from dray.store import attempts, charges, jobs, routing
from dray.store.calls import Calls
from dray.store.connection import Tx, most_connections
from dray.store.records import Attempt, Charge, JobLease, Notice, ReplicaRow, ShardLease


class RecordCalls(Calls):
    """Attempts, notices, replicas and budgets."""

    def note_attempt(
        self,
        lease: ShardLease,
        *,
        node: str | None = None,
        replica: str | None = None,
    ) -> None:
        """Adds what became known about the attempt behind ``lease``; None leaves a field as it is."""
        known = {"node": node, "replica": replica}
        values = {name: value for name, value in known.items() if value is not None}
        if values:
            self._write(
                lambda tx: attempts.change_attempt(tx, lease.key, lease.number, lease.epoch, **values)
            )

    def attempts(self, job_id: str) -> list[Attempt]:
        """All attempts at the job's shards, oldest first."""
        key = self._key(job_id)
        return self._read(lambda tx: attempts.list_attempts(tx, key))

    def causes(self, job_id: str) -> dict[str, int]:
        """How many attempts ended by each cause. What budgets were charged is in :meth:`charges`."""
        key = self._key(job_id)
        return self._read(lambda tx: attempts.count_causes(tx, key))

    def record_notice(self, job_id: str, notice: Notice) -> None:
        """Notes an interruption notice, seen now; one that is known changes nothing."""
        key = self._key(job_id)
        self._write(lambda tx: attempts.add_notice(tx, key, notice))

    def notices(self, job_id: str) -> list[Notice]:
        """The job's interruption notices, oldest first."""
        key = self._key(job_id)
        return self._read(lambda tx: attempts.list_notices(tx, key))

    def most_connections(self) -> int | None:
        """Connections that the database allows in all; None for SQLite, which counts none."""
        return self._read(most_connections)

    def put_replicas(self, lease: JobLease, rows: Sequence[ReplicaRow]) -> None:
        """Says where these replicas stand, so that shards find them."""

        def put(tx: Tx) -> None:
            jobs.check_driver(tx, lease)
            routing.put(tx, lease.key, rows)

        self._write(put)

    def replica_gone(self, job_id: str, name: str) -> None:
        """A replica does not answer: no more shards go there, unless the driver says otherwise."""
        key = self._key(job_id)
        self._write(lambda tx: routing.gone(tx, key, name))

    def replicas(self, job_id: str) -> list[ReplicaRow]:
        """The replicas of the job's present driver, by lane."""
        key = self._key(job_id)
        return self._read(lambda tx: routing.listing(tx, key))

    def charge(self, job_id: str, charged: Sequence[Charge]) -> None:
        """Charges losses; an event counts once, for the cause that was charged first."""
        key = self._key(job_id)
        self._write(lambda tx: charges.charge(tx, key, charged))

    def charged_cause(self, job_id: str, event: str) -> str | None:
        """The cause for which an event was charged; None where it was not."""
        key = self._key(job_id)
        return self._read(lambda tx: charges.cause_of(tx, key, event))

    def spent(
        self, job_id: str, budget: str, *, scope: str = "", within: float | None = None, besides: str = ""
    ) -> int:
        """How much was charged to a budget, without the event ``besides``.

        ``within`` is the last part of the work to count, as a share of the job's rows: 0 since the last row
        was answered, None for all.
        """
        key = self._key(job_id)
        return self._read(lambda tx: charges.spent(tx, key, budget, scope, within=within, besides=besides))

    def losses(self, job_id: str, cause: str, *, besides: str = "") -> int:
        """How many losses, other than ``besides``, were charged for a cause, to whatever budget."""
        key = self._key(job_id)
        return self._read(lambda tx: charges.losses(tx, key, cause, besides=besides))

    def overspent(self, job_id: str, budget: str, *, above: int, within: float | None = None) -> list[str]:
        """The scopes (nodes) of a budget that were charged more than ``above`` times."""
        key = self._key(job_id)
        return self._read(lambda tx: charges.scopes(tx, key, budget, above=above, within=within))

    def charges(self, job_id: str) -> list[Charge]:
        """All that was charged, oldest first."""
        key = self._key(job_id)
        return self._read(lambda tx: charges.listing(tx, key))
