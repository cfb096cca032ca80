"""Which replica a shard runs on: chosen by the store as the shard is claimed, so that two never collide.

The driver keeps the table of replicas; a shard goes to the ready one with the fewest shards. The last ones
wait for replicas that are being started rather than queue behind others on a busy one: who comes then would
have nothing to do. A shard under which engines died gets one to itself: it reserves the emptiest, and has it
when the others are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import and_, case, delete, func, or_, select, update

from dray.store.connection import Tx
from dray.store.records import ReplicaRow, ReplicaState, ShardState
from dray.store.schema import replicas, shards

_COLUMNS = [replicas.c[name] for name in ReplicaRow.__dataclass_fields__]


@dataclass(frozen=True, slots=True)
class _Place:
    """A ready replica: its load, and the shard that is to have it alone."""

    name: str
    slots: int
    load: int
    reserved: int | None


def put(tx: Tx, job_key: int, rows: Sequence[ReplicaRow]) -> None:
    """Replaces what is known of these replicas; reservations stay."""
    for row in rows:
        values = {k: v for k, v in asdict(row).items() if k not in ("name", "reserved")}
        values |= {"state": row.state.value, "changed_at": tx.now}
        own = and_(replicas.c.job_key == job_key, replicas.c.name == row.name)
        if not tx.execute(update(replicas).where(own).values(**values)).rowcount:
            tx.execute(replicas.insert().values(job_key=job_key, name=row.name, **values))


def gone(tx: Tx, job_key: int, name: str) -> None:
    """No more shards go to this replica, until the driver puts it again."""
    own = and_(replicas.c.job_key == job_key, replicas.c.name == name)
    tx.execute(update(replicas).where(own).values(state=ReplicaState.GONE.value, changed_at=tx.now))


def clear(tx: Tx, job_key: int) -> None:
    """Forgets all replicas: those of an older driver end with it."""
    tx.execute(delete(replicas).where(replicas.c.job_key == job_key))


def listing(tx: Tx, job_key: int) -> list[ReplicaRow]:
    """The replicas of a job, by lane, and the oldest of a lane first."""
    rows = tx.execute(
        select(*_COLUMNS)
        .where(replicas.c.job_key == job_key)
        .order_by(replicas.c.lane, replicas.c.changed_at, replicas.c.name)
    )
    return [ReplicaRow(**{**row._mapping, "state": ReplicaState(row.state)}) for row in rows]


def choose(tx: Tx, job_key: int, number: int) -> str | None:
    """A replica for a shard; None while all are taken. The caller has locked the job's row."""
    suspect = tx.execute(
        select(shards.c.crashes).where(shards.c.job_key == job_key, shards.c.number == number)
    ).scalar()
    places = _places(tx, job_key)
    return _alone(tx, job_key, number, places) if suspect else _shared(tx, job_key, number, places)


def _shared(tx: Tx, job_key: int, number: int, places: list[_Place]) -> str | None:
    free = [place for place in places if place.load < place.slots and place.reserved in (None, number)]
    if not free:
        return None
    best = min(free, key=lambda place: (place.load, place.name))
    return None if best.load and 0 < _waiting(tx, job_key) <= _coming(tx, job_key) else best.name


def _waiting(tx: Tx, job_key: int) -> int:
    """Shards that nobody has: those whose lease lapsed are not pending, and to be had all the same."""
    lapsed = and_(shards.c.state == ShardState.LEASED.value, shards.c.lease_until <= tx.now)
    nobodys = or_(shards.c.state == ShardState.PENDING.value, lapsed)
    counted = select(func.count()).select_from(shards).where(shards.c.job_key == job_key, nobodys)
    return int(tx.execute(counted).scalar_one())


def _coming(tx: Tx, job_key: int) -> int:
    """Lanes whose replica is not ready: it starts, or its successor is about to."""
    ready = case((replicas.c.state == ReplicaState.READY.value, replicas.c.lane))
    counts = select(func.count(replicas.c.lane.distinct()), func.count(ready.distinct()))
    lanes, with_one = tx.execute(counts.where(replicas.c.job_key == job_key)).one()
    return int(lanes - with_one)


def _alone(tx: Tx, job_key: int, number: int, places: list[_Place]) -> str | None:
    mine = [place for place in places if place.reserved == number]
    if not mine:
        mine = sorted((p for p in places if p.reserved is None), key=lambda p: (p.load, p.name))[:1]
        for place in mine:
            own = and_(replicas.c.job_key == job_key, replicas.c.name == place.name)
            tx.execute(update(replicas).where(own).values(reserved=number))
    return mine[0].name if mine and mine[0].load == 0 else None


def _places(tx: Tx, job_key: int) -> list[_Place]:
    leased = and_(shards.c.state == ShardState.LEASED.value, shards.c.lease_until > tx.now)
    counted = (
        select(shards.c.replica, func.count())
        .where(shards.c.job_key == job_key, leased)
        .group_by(shards.c.replica)
    )
    loads: dict[str, int] = dict(map(tuple, tx.execute(counted)))
    open_states = (ShardState.PENDING.value, ShardState.LEASED.value)
    alive = select(shards.c.number).where(
        shards.c.job_key == job_key, shards.c.crashes > 0, shards.c.state.in_(open_states)
    )
    suspects = set(tx.execute(alive).scalars())  # a reservation ends with the shard's suspicion
    ready = and_(replicas.c.job_key == job_key, replicas.c.state == ReplicaState.READY.value)
    return [
        _Place(
            row.name, row.slots, loads.get(row.name, 0), row.reserved if row.reserved in suspects else None
        )
        for row in tx.execute(select(replicas.c.name, replicas.c.slots, replicas.c.reserved).where(ready))
    ]
