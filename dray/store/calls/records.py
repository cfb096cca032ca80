"""The store's calls about what happened: attempts, notices, replicas, and what losses were charged to."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dray.store import attempts, charges, jobs, judging, routing, shards
from dray.store.calls.base import Calls
from dray.store.database.connection import Tx
from dray.store.database.limits import ConnectionLimit, most_connections
from dray.store.loss_records import Evidence, Verdict, VerdictStatus, Witnesses
from dray.store.records import Attempt, Charge, JobLease, ReplicaRow, ShardLease, Spending, StoredNotice


class RecordCalls(Calls):
    """Attempts, notices, replicas and budgets."""

    def note_attempt(self, lease: ShardLease, *, node: str | None) -> None:
        """Add the node on which the attempt behind ``lease`` runs, where that is known."""
        if node is not None:
            self._write(
                lambda tx: attempts.change_attempt(tx, lease.key, lease.number, lease.epoch, node=node)
            )

    def attempts(self, job_id: str) -> list[Attempt]:
        """All attempts at the job's shards, oldest first."""
        key = self._key(job_id)
        return self._read(lambda tx: attempts.list_attempts(tx, key))

    def causes(self, job_id: str) -> dict[str, int]:
        """How many attempts ended by each cause. What budgets were charged is in :meth:`charges`."""
        key = self._key(job_id)
        return self._read(lambda tx: attempts.count_causes(tx, key))

    def record_notice(self, job_id: str, notice: StoredNotice) -> None:
        """Note an interruption notice, seen now; one that is known changes nothing."""
        key = self._key(job_id)
        self._write(lambda tx: attempts.add_notice(tx, key, notice))

    def notices(self, job_id: str) -> list[StoredNotice]:
        """The job's interruption notices, oldest first."""
        key = self._key(job_id)
        return self._read(lambda tx: attempts.list_notices(tx, key))

    def most_connections(self) -> ConnectionLimit | None:
        """Connections that the database leaves to dray; None for SQLite, and behind a pooler."""
        return self._read(most_connections)

    def put_replicas(self, lease: JobLease, rows: Sequence[ReplicaRow]) -> None:
        """Say where these replicas stand, so that shards find them."""

        def put(tx: Tx) -> None:
            jobs.check_driver(tx, lease)
            routing.put(tx, lease.key, rows)

        self._write(put)

    def replica_gone(self, job_id: str, name: str) -> None:
        """A replica does not answer: no more shards go there, unless the driver says otherwise."""
        key = self._key(job_id)
        self._write(lambda tx: routing.gone(tx, key, name))

    def testify(self, lease: ShardLease, seen: Evidence) -> None:
        """A shard task lost its replica: no more shards go there, and the driver reads what it saw."""
        self._write(lambda tx: judging.testify(tx, lease, seen))

    def witnesses(self, job_id: str, replica: str) -> Witnesses:
        """What the shards of a replica say of its loss."""
        key = self._key(job_id)
        return self._read(lambda tx: judging.witnesses(tx, key, replica), snapshot=True, long=False)

    def judge(self, lease: JobLease, replica: str, verdict: Verdict, charged: Sequence[Charge]) -> None:
        """The driver's verdict on a lost replica, and what it charges: in one transaction.

        Raises:
            FencedError: the job has another driver.
        """
        self._write(lambda tx: judging.judge(tx, lease, replica, verdict, charged))

    def unjudged(self, job_id: str, names: Collection[str]) -> set[str]:
        """Which of these replicas are gone, as a shard task or the driver says, and have no verdict."""
        if not names:
            return set()
        key = self._key(job_id)
        return self._read(lambda tx: judging.unjudged(tx, key, names))

    def verdict_status(self, lease: ShardLease) -> VerdictStatus:
        """Where the driver's judgement of the loss of this lease's replica stands."""
        return self._read(lambda tx: judging.verdict_status(tx, lease), snapshot=True, long=False)

    def replicas(self, job_id: str, *, ready_only: bool = False) -> list[ReplicaRow]:
        """The replicas of the job's present driver, by lane: all, or those that can take work."""
        key = self._key(job_id)
        return self._read(lambda tx: routing.listing(tx, key, ready_only=ready_only))

    def replica(self, job_id: str, name: str) -> ReplicaRow | None:
        """One of them by its name; None where there is none."""
        key = self._key(job_id)
        return self._read(lambda tx: routing.get(tx, key, name))

    def charge(self, lease: ShardLease, charged: Sequence[Charge]) -> None:
        """Charges what a shard task lost; an event counts once, for the cause that was charged first.

        Raises:
            FencedError: another holder has taken the shard.
        """

        def put(tx: Tx) -> None:
            charges.charge(tx, lease.key, charged)
            shards.check_held(tx, lease)

        self._write(put)

    def spent(self, job_id: str, asked: Sequence[Spending], *, besides: str = "") -> list[int]:
        """How much was charged to each budget, without the event ``besides``."""
        key = self._key(job_id)
        return self._read(lambda tx: charges.spent(tx, key, asked, besides=besides), snapshot=True)

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
