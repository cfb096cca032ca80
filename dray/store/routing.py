"""The table of replicas, and the claim of a place on one of them, which no other shard is given.

The driver keeps the table. :func:`dray.scheduling.choose` says which replica a shard gets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import and_, case, delete, func, or_, select, update

from dray.places import place_of
from dray.scheduling import Backlog, ReplicaView, ShardView, choose, nearness
from dray.store.attempts import last_death
from dray.store.connection import Tx
from dray.store.records import ReplicaRow, ReplicaState, ShardState
from dray.store.schema import replicas, shards

_COLUMNS = [replicas.c[name] for name in ReplicaRow.__dataclass_fields__]


def put(tx: Tx, job_key: int, rows: Sequence[ReplicaRow]) -> None:
    """Replaces what is known of these replicas; reservations and families stay."""
    for row in rows:
        values = {k: v for k, v in asdict(row).items() if k not in ("name", "reserved", "family")}
        values |= {"state": row.state.value, "changed_at": tx.now}
        own = and_(replicas.c.job_key == job_key, replicas.c.name == row.name)
        if not tx.execute(update(replicas).where(own).values(**values)).rowcount:
            tx.execute(replicas.insert().values(job_key=job_key, name=row.name, **values))


def gone(tx: Tx, job_key: int, name: str) -> None:
    """No more shards go to this replica, until the driver puts it again."""
    kept = replicas.c.state != ReplicaState.RETIRED.value
    own = and_(replicas.c.job_key == job_key, replicas.c.name == name, kept)
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


def elsewhere(tx: Tx, job_key: int, before: str | None, here: str | None) -> bool:
    """Whether a crash at the place ``here`` tells more than one ``before``: it is another place, or the only.

    A place counts as long as the job's driver has had a replica there, on a node that is known.
    """
    if here is None:
        return True
    known = select(replicas.c.node, replicas.c.name).where(
        replicas.c.job_key == job_key, replicas.c.node.is_not(None)
    )
    places = {place_of(*row) for row in tx.execute(known)} | {here}
    farther = any(nearness(place, here) == 0 for place in places)
    wanted = 0 if farther else 1
    return (before is not None and nearness(before, here) <= wanted) or len(places) == 1


def place(tx: Tx, job_key: int, number: int) -> str | None:
    """A replica for a shard; None while it has to wait. The caller has locked the job's row."""
    known = select(shards.c.crashes, shards.c.crashed_at, shards.c.family)
    row = tx.execute(known.where(shards.c.job_key == job_key, shards.c.number == number)).one()
    died_at = (last_death(tx, job_key, number) or row.crashed_at) if row.crashes else None
    shard = ShardView(number=number, suspect=row.crashes > 0, died_at=died_at, family=row.family)
    ready = _ready(tx, job_key)
    choice = choose(shard, ready, lambda: Backlog(waiting=_waiting(tx, job_key), coming=_coming(tx, job_key)))
    if choice.reserve is not None:
        _reserve(tx, job_key, number, choice.reserve, ready)
    if choice.replica is not None and row.family:
        own = and_(replicas.c.job_key == job_key, replicas.c.name == choice.replica)
        tx.execute(update(replicas).where(own).values(family=row.family))
    return choice.replica


def _reserve(tx: Tx, job_key: int, number: int, name: str, ready: Sequence[ReplicaView]) -> None:
    if any(one.name == name and one.reserved == number for one in ready):
        return
    ours = and_(replicas.c.job_key == job_key, replicas.c.reserved == number)
    tx.execute(update(replicas).where(ours).values(reserved=None))
    own = and_(replicas.c.job_key == job_key, replicas.c.name == name)
    tx.execute(update(replicas).where(own).values(reserved=number))


def _waiting(tx: Tx, job_key: int) -> int:
    """Shards without a live lease: those that are pending, and those whose lease lapsed."""
    lapsed = and_(shards.c.state == ShardState.LEASED.value, shards.c.lease_until <= tx.now)
    unheld = or_(shards.c.state == ShardState.PENDING.value, lapsed)
    counted = select(func.count()).select_from(shards).where(shards.c.job_key == job_key, unheld)
    return int(tx.execute(counted).scalar_one())


def _coming(tx: Tx, job_key: int) -> int:
    """Lanes whose replica is not ready: it starts, or its successor is about to."""
    wanted = replicas.c.state != ReplicaState.RETIRED.value
    ready = case((replicas.c.state == ReplicaState.READY.value, replicas.c.lane))
    counts = select(func.count(replicas.c.lane.distinct()), func.count(ready.distinct()))
    lanes, with_one = tx.execute(counts.where(replicas.c.job_key == job_key, wanted)).one()
    return int(lanes - with_one)


def _ready(tx: Tx, job_key: int) -> list[ReplicaView]:
    leased = and_(shards.c.state == ShardState.LEASED.value, shards.c.lease_until > tx.now)
    there = (
        select(shards.c.replica, shards.c.family, func.count())
        .where(shards.c.job_key == job_key, leased)
        .group_by(shards.c.replica, shards.c.family)
    )
    loads: Counter[str] = Counter()
    families: defaultdict[str, set[int]] = defaultdict(set)
    for name, family, count in tx.execute(there):
        loads[name] += count
        families[name].add(family)
    open_states = (ShardState.PENDING.value, ShardState.LEASED.value)
    alive = select(shards.c.number).where(
        shards.c.job_key == job_key, shards.c.crashes > 0, shards.c.state.in_(open_states)
    )
    suspects = set(tx.execute(alive).scalars())  # a reservation ends with the shard's suspicion
    ready = and_(replicas.c.job_key == job_key, replicas.c.state == ReplicaState.READY.value)
    columns = (replicas.c.name, replicas.c.node, replicas.c.slots, replicas.c.reserved, replicas.c.family)
    return [
        ReplicaView(
            name=row.name,
            place=place_of(row.node, row.name),
            slots=row.slots,
            load=loads[row.name],
            reserved=row.reserved if row.reserved in suspects else None,
            families=frozenset({row.family, *families[row.name]} - {0}),
        )
        for row in tx.execute(select(*columns).where(ready))
    ]
