"""A lost replica: shard tasks say what they saw of it, its driver judges. Functions on one open transaction.

Each shard task notes its evidence on its own attempt, so none can erase another's. The driver alone writes
the verdict, on the replica's row, together with the charges.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict

from sqlalchemy import and_, exists, func, select, update

from dray.store import charges, jobs, routing
from dray.store.attempts import change_attempt
from dray.store.database.connection import Tx
from dray.store.database.schema import attempts, replicas, shards
from dray.store.loss_records import Evidence, Verdict, VerdictStatus, Witnesses, own_event
from dray.store.records import Charge, JobLease, ShardLease
from dray.store.shards import held, live
from dray.store.states import ReplicaState


def testify(tx: Tx, lease: ShardLease, seen: Evidence) -> None:
    """A shard task lost its replica: no more shards go there, and the attempt says what it saw."""
    routing.gone(tx, lease.key, lease.replica or "")
    change_attempt(tx, lease.key, lease.number, lease.epoch, evidence=asdict(seen))


def witnesses(tx: Tx, job_key: int, replica: str) -> Witnesses:
    """What is known from the shards of a replica. Silent are those that hold a live lease on it."""
    here = and_(attempts.c.job_key == job_key, attempts.c.replica == replica)
    said = select(attempts.c.evidence).where(here, attempts.c.evidence.is_not(None))
    own = and_(
        shards.c.job_key == job_key,
        shards.c.number == attempts.c.shard,
        shards.c.epoch == attempts.c.epoch,
        live(tx),
    )
    silent = select(func.count()).where(here, attempts.c.evidence.is_(None), exists().where(own))
    return Witnesses(
        said=tuple(Evidence(**one) for one in tx.execute(said.order_by(attempts.c.attempt_key)).scalars()),
        silent=int(tx.execute(silent.select_from(attempts)).scalar_one()),
    )


def judge(tx: Tx, lease: JobLease, replica: str, verdict: Verdict, charged: Sequence[Charge]) -> None:
    """The driver's verdict, and what it charges. Doing it twice is doing it once.

    A driver that stood still judges late. By then shard tasks have charged the same loss: the driver's
    charges replace theirs.
    """
    jobs.check_driver(tx, lease, alone=True)
    if charged:
        charges.retract(tx, lease.key, _own_events(tx, lease.key, replica))
    charges.charge(tx, lease.key, charged)
    _write_verdict(tx, lease.key, replica, verdict)


def _own_events(tx: Tx, job_key: int, replica: str) -> list[str]:
    """What names the charges of the shard tasks that lost this replica."""
    here = and_(attempts.c.job_key == job_key, attempts.c.replica == replica)
    said = select(attempts.c.shard, attempts.c.epoch).where(here, attempts.c.evidence.is_not(None))
    return [own_event(row.shard, row.epoch) for row in tx.execute(said)]


def _write_verdict(tx: Tx, job_key: int, replica: str, verdict: Verdict) -> None:
    own = and_(replicas.c.job_key == job_key, replicas.c.name == replica)
    tx.execute(update(replicas).where(own).values(verdict=verdict.cause, event=verdict.event))


def unjudged(tx: Tx, job_key: int, names: Collection[str]) -> set[str]:
    """Which of these replicas are gone and have no verdict.

    A replica whose end the driver wanted never has one: a long job may have ten thousand of them.
    """
    ended = [state.value for state in ReplicaState if state.over]
    here = and_(replicas.c.job_key == job_key, replicas.c.name.in_(names))
    gone = and_(here, replicas.c.state.in_(ended))
    return set(tx.execute(select(replicas.c.name).where(gone, replicas.c.verdict.is_(None))).scalars())


def verdict_status(tx: Tx, lease: ShardLease) -> VerdictStatus:
    """Whether the loss of the replica that a lease names is judged, or is going to be.

    It is not once the replica's driver is gone, the job is to stop, or the shard has another holder.
    """
    own = and_(replicas.c.job_key == lease.key, replicas.c.name == lease.replica)
    row = tx.execute(select(replicas.c.verdict, replicas.c.event).where(own)).first()
    if row is not None and row.verdict is not None:
        return VerdictStatus(verdict=Verdict(cause=row.verdict, event=row.event), open=False)
    holder = tx.execute(select(shards.c.number).where(held(lease))).first()
    going = row is not None and holder is not None and jobs.has_driver(tx, lease.key)
    return VerdictStatus(verdict=None, open=going and not jobs.stop_signals(tx, lease.key).stop)
