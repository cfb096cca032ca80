"""The table of replicas, and the claim of a place on one of them, which no other shard is given.

The driver keeps the table. :func:`dray.scheduling.choose` says which replica a shard gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    case,
    delete,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    update,
)

from dray.places import apart, place_of
from dray.scheduling import Backlog, Ready, ReplicaView, ShardView, choose, nearness, views
from dray.store.attempts import last_death
from dray.store.database.connection import Tx, insert_into
from dray.store.database.schema import replicas, shards
from dray.store.records import ReplicaRow
from dray.store.states import OPEN_STATES, ReplicaState, ShardState

_NAMES = [name for name in ReplicaRow.__dataclass_fields__ if name != "others"]
_COLUMNS = [replicas.c[name] for name in _NAMES]
_TOLD = [name for name in _NAMES if name not in ("name", "reserved", "family")]


def put(tx: Tx, job_key: int, rows: Sequence[ReplicaRow]) -> None:
    """Replace what is known of these replicas, where it is another; reservations and families stay."""
    if not rows:
        return
    now = tx.execute(select(tx.now)).scalar_one()
    insert = insert_into(tx, replicas)
    news = {name: insert.excluded[name] for name in _TOLD}
    write = insert.on_conflict_do_update(
        index_elements=[replicas.c.job_key, replicas.c.name],
        set_={**news, "changed_at": insert.excluded.changed_at},
        where=or_(*(replicas.c[name].is_distinct_from(new) for name, new in news.items())),
    )
    own = {"job_key": job_key, "changed_at": now}
    told = [{**{name: getattr(row, name) for name in _TOLD}, "node": row.nodes} for row in rows]
    values = [
        {**own, "name": row.name, **of, "state": row.state.value} for row, of in zip(rows, told, strict=True)
    ]
    tx.execute(write, values)


def gone(tx: Tx, job_key: int, name: str) -> None:
    """No more shards go to this replica, until the driver puts it again."""
    kept = replicas.c.state != ReplicaState.RETIRED.value
    own = and_(replicas.c.job_key == job_key, replicas.c.name == name, kept)
    tx.execute(update(replicas).where(own).values(state=ReplicaState.GONE.value, changed_at=tx.now))


def clear(tx: Tx, job_key: int) -> None:
    """Forgets all replicas: those of an older driver end with it."""
    tx.execute(delete(replicas).where(replicas.c.job_key == job_key))


def listing(tx: Tx, job_key: int, *, ready_only: bool = False) -> list[ReplicaRow]:
    """The replicas of a job, by lane, and the oldest of a lane first: all, or those that are ready."""
    rows = tx.execute(
        select(*_COLUMNS)
        .where(_is_ready(job_key) if ready_only else replicas.c.job_key == job_key)
        .order_by(replicas.c.lane, replicas.c.changed_at, replicas.c.name)
    )
    return [_row(row) for row in rows]


def get(tx: Tx, job_key: int, name: str) -> ReplicaRow | None:
    """The replica of this name, None where the job's present driver has none."""
    own = and_(replicas.c.job_key == job_key, replicas.c.name == name)
    row = tx.execute(select(*_COLUMNS).where(own)).first()
    return None if row is None else _row(row)


def _row(row: Row[Any]) -> ReplicaRow:
    node, *others = apart(row.node) or (None,)
    own = {"state": ReplicaState(row.state), "node": node, "others": tuple(others)}
    return ReplicaRow(**{**row._mapping, **own})


def elsewhere(tx: Tx, job_key: int, before: str | None, here: str | None) -> bool:
    """Whether a crash at the place ``here`` tells more than one ``before``: it is another place, or the only.

    A place counts as long as the job's driver has had a replica there, on a node that is known.
    """
    if here is None:
        return True
    known = select(replicas.c.node, replicas.c.name).where(
        replicas.c.job_key == job_key, replicas.c.node.is_not(None)
    )
    near = {nearness(place_of(*row), here) for row in tx.execute(known)}
    wanted = 0 if 0 in near else 1
    return (before is not None and nearness(before, here) <= wanted) or near <= {2}


STANDING = shards.c.crashes, shards.c.crashed_at, shards.c.family
"""What :func:`place` has to know of a shard."""


def place(tx: Tx, job_key: int, number: int, row: Row[Any]) -> str | None:
    """A replica for a shard whose ``row`` is known; None while it has to wait. The job's row is locked."""
    died_at = (last_death(tx, job_key, number) or row.crashed_at) if row.crashes else None
    shard = ShardView(number=number, suspect=row.crashes > 0, died_at=died_at, family=row.family)
    ready = _ready(tx, job_key) if shard.suspect else _first(tx, job_key, number, row.family)
    choice = choose(shard, ready, lambda: _backlog(tx, job_key))
    if choice.reserve is not None:
        _reserve(tx, job_key, number, choice.reserve, ready)
    if choice.replica is not None and row.family:
        own = and_(replicas.c.job_key == job_key, replicas.c.name == choice.replica)
        tx.execute(update(replicas).where(own).values(family=row.family))
    return choice.replica


def has_none(tx: Tx, job_key: int, number: int, family: int) -> bool:
    """Whether a shard that is no suspect finds all places taken. Locks nothing: one may come free by now."""
    return not _first(tx, job_key, number, family)


def _first(tx: Tx, job_key: int, number: int, family: int) -> list[ReplicaView]:
    """The replica that :func:`choose` would take of all for a shard that is no suspect, or none.

    The database looks at them: a claim holds a lock, and would be long with a thousand replicas in Python.
    """
    on_it = select(func.count()).where(_leased(tx, job_key), shards.c.replica == replicas.c.name)
    knows = or_(replicas.c.family == family, on_it.where(shards.c.family == family).scalar_subquery() > 0)
    kept = and_(replicas.c.reserved != number, replicas.c.reserved.in_(_suspects(job_key)))
    places = (
        select(
            replicas.c.name,
            replicas.c.node,
            replicas.c.slots,
            on_it.scalar_subquery().label("load"),
            case((knows, 1), else_=0).label("knows") if family else literal(0).label("knows"),
        )
        .where(_is_ready(job_key), or_(replicas.c.reserved.is_(None), not_(kept)))
        .cte("places")
        .prefix_with("MATERIALIZED")  # each replica's shards are counted once
    )
    first = places.c.load, places.c.knows.desc(), places.c.name
    free = select(places).where(places.c.load < places.c.slots).order_by(*first).limit(1)
    return [
        ReplicaView(
            name=row.name,
            place=place_of(row.node, row.name),
            slots=row.slots,
            load=row.load,
            families=frozenset({family} if row.knows else ()),
        )
        for row in tx.execute(free)
    ]


def _reserve(tx: Tx, job_key: int, number: int, name: str, ready: Sequence[ReplicaView]) -> None:
    if any(one.name == name and one.reserved == number for one in ready):
        return
    ours = and_(replicas.c.job_key == job_key, replicas.c.reserved == number)
    tx.execute(update(replicas).where(ours).values(reserved=None))
    own = and_(replicas.c.job_key == job_key, replicas.c.name == name)
    tx.execute(update(replicas).where(own).values(reserved=number))


def _backlog(tx: Tx, job_key: int) -> Backlog:
    """Where no replica comes, nothing waits for one: the shards are not counted."""
    coming = _coming(tx, job_key)
    return Backlog(waiting=_waiting(tx, job_key) if coming else 0, coming=coming)


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
    there = (
        select(shards.c.replica, shards.c.family, func.count())
        .where(_leased(tx, job_key))
        .group_by(shards.c.replica, shards.c.family)
    )
    leased = [(name, family, count) for name, family, count in tx.execute(there)]
    suspects = set(tx.execute(_suspects(job_key)).scalars())
    columns = (replicas.c.name, replicas.c.node, replicas.c.slots, replicas.c.reserved, replicas.c.family)
    ready = tx.execute(select(*columns).where(_is_ready(job_key)))
    return views([Ready(*row) for row in ready], leased=leased, suspects=suspects)


def _is_ready(job_key: int) -> ColumnElement[bool]:
    return and_(replicas.c.job_key == job_key, replicas.c.state == ReplicaState.READY.value)


def _leased(tx: Tx, job_key: int) -> ColumnElement[bool]:
    """Shards that are on some replica. The state is no parameter: else no database would use its index."""
    own = shards.c.job_key == job_key
    state: ColumnElement[str] = literal_column(f"'{ShardState.LEASED.value}'")
    return and_(own, shards.c.state == state, shards.c.lease_until > tx.now)


def _suspects(job_key: int) -> Select[tuple[int]]:
    """Numbers of suspects that are open: a reservation ends with the shard's suspicion."""
    own = shards.c.job_key == job_key
    return select(shards.c.number).where(own, shards.c.crashes > 0, shards.c.state.in_(OPEN_STATES))
