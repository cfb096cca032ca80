"""Claims of shards: a lease for an attempt, on a replica that has room. Functions on one open transaction."""

from __future__ import annotations

from sqlalchemy import and_, case, exists, or_, select, update

from dray.store import routing
from dray.store.attempts import cause_of_steal, close_attempts, open_attempt
from dray.store.database.connection import Tx
from dray.store.database.schema import jobs, shards
from dray.store.jobs import check_driver
from dray.store.records import Claim, JobLease, ShardLease
from dray.store.states import OPEN_STATES, ShardState

_TERMINAL = (shards.c.inherited + shards.c.done + shards.c.failed).label("terminal")


def claim(
    tx: Tx, lease: JobLease, number: int, *, owner: str, replica: str | None, ttl: float
) -> ShardLease | None:
    """Take a shard that is pending, lapsed, or already ``owner``'s; None when it is not to be had."""
    check_driver(tx, lease)
    lapsed = and_(
        shards.c.state == ShardState.LEASED.value,
        or_(shards.c.lease_until <= tx.now, shards.c.owner == owner),
    )
    stolen = case((and_(lapsed, shards.c.owner != owner), 1), else_=0)
    taken = tx.execute(
        update(shards)
        .where(
            shards.c.job_key == lease.key,
            shards.c.number == number,
            or_(shards.c.state == ShardState.PENDING.value, lapsed),
        )
        .values(
            state=ShardState.LEASED.value,
            epoch=shards.c.epoch + 1,
            owner=owner,
            lease_until=tx.now + ttl,
            interruptions=shards.c.interruptions + stolen,
            replica=replica,
        )
        .returning(shards.c.epoch, shards.c.crashes, _TERMINAL)
    ).first()
    if taken is None:
        return None
    close_attempts(tx, lease.key, [number], cause=cause_of_steal(owner))
    open_attempt(tx, lease.key, number, taken.epoch, owner=owner, replica=replica)
    return ShardLease(
        job_id=lease.job_id,
        key=lease.key,
        number=number,
        epoch=taken.epoch,
        owner=owner,
        ttl=ttl,
        replica=replica,
        suspect=taken.crashes > 0,
        terminal=taken.terminal,
    )


def place(tx: Tx, lease: JobLease, number: int, *, owner: str, ttl: float) -> Claim:
    """Take a shard for whichever replica has room."""
    check_driver(tx, lease, alone=True)
    live = (shards.c.lease_until > tx.now).label("live")
    taken = select(shards.c.state, shards.c.epoch, live, shards.c.owner, *routing.STANDING).where(
        shards.c.job_key == lease.key, shards.c.number == number
    )
    row = tx.execute(taken).one()
    leased = row.state == ShardState.LEASED.value
    if row.state not in OPEN_STATES or (leased and row.live and row.owner != owner):
        return Claim(lease=None)
    replica = routing.place(tx, lease.key, number, row)
    if replica is None:
        if leased:
            _lapse(tx, lease, number, row.epoch, owner)
        return Claim(lease=None, waiting=True)
    return Claim(lease=claim(tx, lease, number, owner=owner, replica=replica, ttl=ttl))


def must_wait(tx: Tx, lease: JobLease, number: int) -> bool:
    """Whether a shard that waits would find no place now. Locks nothing, so that many may ask often.

    False for all else: :func:`place` says what becomes of the shard.
    """
    driver = and_(jobs.c.epoch == lease.epoch, jobs.c.driver_owner == lease.owner)
    waits = select(*routing.STANDING).where(
        shards.c.job_key == lease.key,
        shards.c.number == number,
        shards.c.state == ShardState.PENDING.value,
        exists().where(jobs.c.job_key == lease.key, driver),
    )
    row = tx.execute(waits).first()
    return row is not None and not row.crashes and routing.has_none(tx, lease.key, number, row.family)


def _lapse(tx: Tx, lease: JobLease, number: int, epoch: int, owner: str) -> None:
    """End a lease that is over, or ``owner``'s of an earlier attempt: the shard waits for a replica.

    Its holder locks the shard and not the job: since the lease was read with ``epoch``, the holder may have
    finished the shard, given it back, or renewed the lease. Then the shard stays as it is.
    """
    stolen = case((shards.c.owner != owner, 1), else_=0)
    lapsed = tx.execute(
        update(shards)
        .where(
            shards.c.job_key == lease.key,
            shards.c.number == number,
            shards.c.epoch == epoch,
            shards.c.state == ShardState.LEASED.value,
            or_(shards.c.lease_until <= tx.now, shards.c.owner == owner),
        )
        .values(
            state=ShardState.PENDING.value,
            owner=None,
            lease_until=None,
            replica=None,
            interruptions=shards.c.interruptions + stolen,
        )
    )
    if lapsed.rowcount:
        close_attempts(tx, lease.key, [number], cause=cause_of_steal(owner))
