"""Shards: publication, leases, splits. Functions on one open transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, func, insert, select, update

from dray.errors import FencedError, StoreFatalError
from dray.places import apart, split_place
from dray.store import charges, routing
from dray.store.attempt_causes import INTERRUPTIONS, AttemptCause
from dray.store.attempts import (
    close_attempts,
    list_notices,
    place_of_attempt,
    rows_of_attempt,
)
from dray.store.database.connection import Tx
from dray.store.database.schema import jobs, shards
from dray.store.jobs import alone, change, check_driver, stop_signals
from dray.store.records import Charge, JobLease, Shard, ShardLease, ShardSnapshot, ShardSpec
from dray.store.states import OPEN_STATES, JobState, ShardState

_COLUMNS = [shards.c[name] for name in Shard.__dataclass_fields__]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldElsewhere:
    """How many rows of a job are in no shard: with an error or an answer from ingest on, or led by others."""

    rejected: int
    reused: int
    following: int


def publish(
    tx: Tx, lease: JobLease, specs: Sequence[ShardSpec], held: HeldElsewhere, *, total_rows: int
) -> None:
    """End ingest: all shards, the job's total and its state, at once.

    Publishing the same shards again changes nothing, so it may be retried.
    """
    check_driver(tx, lease)
    published = tx.execute(select(jobs.c.total).where(jobs.c.job_key == lease.key)).scalar()
    if published is not None:
        _refuse_other_shards(tx, lease, specs)
        return
    found = held.rejected + held.reused + held.following + sum(spec.rows for spec in specs)
    if total_rows != found:
        raise StoreFatalError(
            f"job {lease.job_id!r}: {total_rows} rows read, but its shards, rejects and shared rows hold "
            f"{found}; this is a fault in dray"
        )
    _insert(tx, lease.key, specs)
    change(
        tx,
        lease,
        total=total_rows,
        rejected=held.rejected,
        shared_done=held.reused,
        state=JobState.IN_PROGRESS.value,
    )


def move(tx: Tx, lease: JobLease, old: str, new: str) -> None:
    """A part of the spool lies elsewhere from now on."""
    check_driver(tx, lease)
    tx.execute(update(shards).where(shards.c.job_key == lease.key, shards.c.uri == old).values(uri=new))


def _refuse_other_shards(tx: Tx, lease: JobLease, specs: Sequence[ShardSpec]) -> None:
    present = {shard.number: shard for shard in listing(tx, lease.key)}
    for spec in specs:
        shard = present.get(spec.number)
        if shard is None or (shard.offset, shard.length, shard.rows) != (spec.offset, spec.length, spec.rows):
            raise StoreFatalError(
                f"job {lease.job_id!r} has its shards already, and other ones; resume it from the store"
            )


def _insert(
    tx: Tx,
    job_key: int,
    specs: Sequence[ShardSpec],
    *,
    parent: int | None = None,
    crashes: int = 0,
    crashed_at: str | None = None,
) -> None:
    if not specs:
        return
    rows = [
        {
            **{name: value for name, value in asdict(spec).items() if name != "suspect"},
            "job_key": job_key,
            "state": ShardState.PENDING.value,
            "parent": parent,
            "crashes": crashes if spec.suspect else 0,
            "crashed_at": crashed_at if spec.suspect else None,
        }
        for spec in specs
    ]
    tx.execute(insert(shards), rows)


def listing(tx: Tx, job_key: int, *, open_only: bool = False) -> list[Shard]:
    """The shards of a job, in the order of their numbers: all, or those that still have rows to run."""
    query = select(*_COLUMNS).where(shards.c.job_key == job_key).order_by(shards.c.number)
    if open_only:
        query = query.where(shards.c.state.in_(OPEN_STATES))
    return [_shard(row) for row in tx.execute(query)]


def count_whole(tx: Tx, job_key: int) -> int:
    """The shards of a job without those that were split."""
    whole = and_(shards.c.job_key == job_key, shards.c.state != ShardState.SPLIT.value)
    return int(tx.execute(select(func.count()).where(whole)).scalar_one())


def by_state(tx: Tx, job_key: int) -> dict[str, int]:
    """How many shards are in each state that any is in."""
    state = shards.c.state
    rows = tx.execute(select(state, func.count()).where(shards.c.job_key == job_key).group_by(state))
    return {row[0]: int(row[1]) for row in rows}


def renew(tx: Tx, lease: ShardLease) -> None:
    """Extend a lease. This is the fence: it must hit one row."""
    hit = tx.execute(update(shards).where(held(lease)).values(lease_until=tx.now + lease.ttl)).rowcount
    if hit != 1:
        raise fenced(lease)


def finish(tx: Tx, lease: ShardLease) -> None:
    """Mark a shard done. Doing it twice is doing it once."""
    if not _leave(tx, lease, state=ShardState.DONE.value):
        _confirm(tx, lease, ShardState.DONE)
        return
    missing = _get(tx, lease).remaining
    if missing:
        raise StoreFatalError(
            f"job {lease.job_id!r}, shard {lease.number}: {missing} of its rows have no outcome, though all "
            "were committed: did the database go back in time (failover to a standby, a restored backup)? "
            "A resume runs those rows again"
        )
    close_attempts(tx, lease.key, [lease.number], cause=AttemptCause.DONE)


def release(
    tx: Tx,
    lease: ShardLease,
    *,
    cause: str,
    detail: str,
    suspect: bool = False,
    charged: Sequence[Charge] = (),
) -> None:
    """Give a shard back with its finished rows kept. Doing it twice is doing it once."""
    charges.charge(tx, lease.key, charged)
    interrupted = 1 if cause in INTERRUPTIONS else 0
    accused = {"crashes": shards.c.crashes + 1, "crashed_at": _place(tx, lease)} if suspect else {}
    if not _leave(
        tx,
        lease,
        state=ShardState.PENDING.value,
        interruptions=shards.c.interruptions + interrupted,
        **accused,
    ):
        _confirm(tx, lease, ShardState.PENDING)
        return
    close_attempts(tx, lease.key, [lease.number], cause=cause, detail=detail)


def take_back(tx: Tx, lease: JobLease, number: int, *, cause: str, detail: str) -> None:
    """Release a shard in the driver's name, whichever task holds it. A shard that no task holds stays so."""
    check_driver(tx, lease)
    held = select(shards.c.epoch, shards.c.owner).where(
        shards.c.job_key == lease.key,
        shards.c.number == number,
        shards.c.state == ShardState.LEASED.value,
    )
    holder = tx.execute(held.with_for_update()).first()
    if holder is None:
        return
    its = ShardLease(
        job_id=lease.job_id,
        key=lease.key,
        number=number,
        epoch=holder.epoch,
        owner=holder.owner,
        ttl=0.0,
    )
    release(tx, its, cause=cause, detail=detail)


def split(
    tx: Tx,
    lease: ShardLease,
    parts: Sequence[ShardSpec],
    *,
    cause: str,
    detail: str,
    suspect: bool = False,
    charged: Sequence[Charge] = (),
) -> list[Shard]:
    """Replace a shard by parts of it; those marked so are suspects where it was one, or is (``suspect``).

    Doing it twice is doing it once, and returns the same parts. Each part says what it ``inherited``.
    """
    alone(tx, lease.key)  # two splits never choose the same numbers
    charges.charge(tx, lease.key, charged)
    if not _leave(tx, lease, state=ShardState.SPLIT.value):
        _confirm(tx, lease, ShardState.SPLIT)
    else:
        parent = _get(tx, lease)  # only now: no commit comes between
        _check_parts(parent, parts)
        accused = suspect or parent.crashes > 0
        _insert(
            tx,
            lease.key,
            _numbered(tx, lease, parts),
            parent=lease.number,
            crashes=1 if accused else 0,  # the whole's crashes say nothing of one half
            crashed_at=_place(tx, lease) if suspect else parent.crashed_at,
        )
        close_attempts(tx, lease.key, [lease.number], cause=cause, detail=detail)
    children = select(*_COLUMNS).where(shards.c.job_key == lease.key, shards.c.parent == lease.number)
    return [_shard(row) for row in tx.execute(children.order_by(shards.c.number))]


def snapshot(tx: Tx, lease: ShardLease) -> ShardSnapshot:
    """What is known of a shard whose attempt ends."""
    shard, place = _get(tx, lease), _place(tx, lease)
    nodes = apart(split_place(place)[0]) if place is not None else ()
    known = list_notices(tx, lease.key) if nodes else []
    return ShardSnapshot(
        now=float(tx.execute(select(tx.now)).scalar_one()),
        shard=shard,
        new_rows=rows_of_attempt(tx, lease.key, lease.number, lease.epoch),
        elsewhere=routing.elsewhere(tx, lease.key, shard.crashed_at, place),
        notices=tuple(notice for notice in known if notice.node in nodes),
        signals=stop_signals(tx, lease.key),
    )


def _place(tx: Tx, lease: ShardLease) -> str | None:
    return place_of_attempt(tx, lease.key, lease.number, lease.epoch)


def _check_parts(parent: Shard, parts: Sequence[ShardSpec]) -> None:
    """Each row is in one part, and the parts know of as many outcomes as there are."""
    ordered = sorted(parts, key=lambda part: part.first_position)
    begins = [(part.offset, part.first_position) for part in ordered]
    ends = [(part.offset + part.length, part.last_position) for part in ordered]
    whole = (parent.offset, parent.first_position), (parent.offset + parent.length, parent.last_position)
    joined = [*begins, whole[1]] == [whole[0], *ends]
    possible = all(0 <= part.inherited <= part.rows for part in parts)
    if not joined or not possible or sum(part.inherited for part in parts) != parent.terminal:
        raise StoreFatalError(
            f"shard {parent.number}: its parts do not hold its {parent.rows} rows, {parent.terminal} of them "
            "with an outcome; this is a fault in dray"
        )


def _numbered(tx: Tx, lease: ShardLease, parts: Sequence[ShardSpec]) -> list[ShardSpec]:
    highest = tx.execute(select(func.max(shards.c.number)).where(shards.c.job_key == lease.key)).scalar_one()
    numbered: list[ShardSpec] = []
    for part in parts:
        number = part.number if part.number >= 0 else highest + 1
        highest = max(highest, number)
        numbered.append(replace(part, number=number))
    return numbered


def fenced(lease: ShardLease) -> FencedError:
    """The error of a shard task that has lost the lease of its shard."""
    return FencedError(
        f"job {lease.job_id!r}, shard {lease.number}: the lease of epoch {lease.epoch} is lost; drop the work"
    )


def _leave(tx: Tx, lease: ShardLease, **values: Any) -> bool:
    return (
        tx.execute(
            update(shards).where(held(lease)).values(owner=None, lease_until=None, replica=None, **values)
        ).rowcount
        == 1
    )


def _confirm(tx: Tx, lease: ShardLease, state: ShardState) -> None:
    """A transition that hit nothing is fine only if this very lease has made it before."""
    shard = _get(tx, lease)
    if shard.state is not state or shard.epoch != lease.epoch:
        raise fenced(lease)


def _get(tx: Tx, lease: ShardLease) -> Shard:
    row = tx.execute(
        select(*_COLUMNS).where(shards.c.job_key == lease.key, shards.c.number == lease.number)
    ).one()
    return _shard(row)


def held(lease: ShardLease) -> ColumnElement[bool]:
    """The condition that a row is the shard of the lease, and no other holder has taken it."""
    return and_(
        shards.c.job_key == lease.key,
        shards.c.number == lease.number,
        shards.c.epoch == lease.epoch,
        shards.c.owner == lease.owner,
        shards.c.state == ShardState.LEASED.value,
    )


def check_held(tx: Tx, lease: ShardLease) -> None:
    """Raise FencedError where another holder has taken the shard."""
    if tx.execute(select(shards.c.number).where(held(lease))).first() is None:
        raise fenced(lease)


def live(tx: Tx) -> ColumnElement[bool]:
    """The condition that a shard is leased, and the lease has not lapsed."""
    return and_(shards.c.state == ShardState.LEASED.value, shards.c.lease_until > tx.now)


def _shard(row: Row[Any]) -> Shard:
    values = dict(row._mapping)
    return Shard(**{**values, "state": ShardState(values["state"])})
