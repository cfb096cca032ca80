"""Which replica a shard runs on: chosen by the store as the shard is claimed, so that two never collide.

The driver keeps the table of replicas; a shard goes to the ready one with the fewest shards. The last ones
wait for replicas that are being started rather than queue behind others on a busy one: who comes then would
have nothing to do. A shard under which engines died gets one to itself: it reserves the emptiest, and has it
when the others are done. It goes to another node than that of its last death, or to another lane, while one
that is ready can take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import and_, case, delete, func, or_, select, update

from dray.places import place_of, split_place
from dray.store.attempts import last_death
from dray.store.connection import Tx
from dray.store.records import ReplicaRow, ReplicaState, ShardState
from dray.store.schema import replicas, shards

_COLUMNS = [replicas.c[name] for name in ReplicaRow.__dataclass_fields__]


@dataclass(frozen=True, slots=True)
class _Place:
    """A ready replica: its load, and the shard that is to have it alone."""

    name: str
    at: str | None
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
    farther = any(_nearness(place, here) == 0 for place in places)
    wanted = 0 if farther else 1
    return (before is not None and _nearness(before, here) <= wanted) or len(places) == 1


def _nearness(place: str | None, other: str | None) -> int:
    """0 on another node, 1 on the same in another lane, 2 at the same place; 0 where one is not known."""
    if place is None or other is None:
        return 0
    (node, lane), (other_node, other_lane) = split_place(place), split_place(other)
    return 0 if node != other_node else 1 if lane != other_lane else 2


def choose(tx: Tx, job_key: int, number: int) -> str | None:
    """A replica for a shard; None while all are taken. The caller has locked the job's row."""
    known = select(shards.c.crashes, shards.c.crashed_at)
    shard = tx.execute(known.where(shards.c.job_key == job_key, shards.c.number == number)).one()
    places = _places(tx, job_key)
    if not shard.crashes:
        return _shared(tx, job_key, number, places)
    return _alone(tx, job_key, number, places, last_death(tx, job_key, number) or shard.crashed_at)


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


def _alone(tx: Tx, job_key: int, number: int, places: list[_Place], died_at: str | None) -> str | None:
    """The replica that a suspect has to itself, once it is empty; until then it is reserved for it.

    One that is farther from the last death is preferred, also to one that is reserved already.
    """

    def rank(place: _Place) -> tuple[int, bool, int, str]:
        return _nearness(place.at, died_at), place.reserved != number, place.load, place.name

    open_ones = [place for place in places if place.reserved in (None, number)]
    if not open_ones:
        return None
    best = min(open_ones, key=rank)
    if best.reserved != number:
        ours = and_(replicas.c.job_key == job_key, replicas.c.reserved == number)
        tx.execute(update(replicas).where(ours).values(reserved=None))
        own = and_(replicas.c.job_key == job_key, replicas.c.name == best.name)
        tx.execute(update(replicas).where(own).values(reserved=number))
    return best.name if best.load == 0 else None


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
    columns = replicas.c.name, replicas.c.node, replicas.c.slots, replicas.c.reserved
    return [
        _Place(
            name=row.name,
            at=place_of(row.node, row.name),
            slots=row.slots,
            load=loads.get(row.name, 0),
            reserved=row.reserved if row.reserved in suspects else None,
        )
        for row in tx.execute(select(*columns).where(ready))
    ]
