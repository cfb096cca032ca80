"""Budgets: what losses were charged to. Functions on one open transaction.

A charge is a row, so that it is made once however often it is tried, and outlives every process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import ColumnElement, and_, delete, func, or_, select

from dray.places import apart, split_place
from dray.store.database.connection import Tx, insert_ignoring
from dray.store.database.schema import attempts, charges, jobs, replicas, shards
from dray.store.jobs import alone
from dray.store.loss_records import attempt_of
from dray.store.records import Charge, Spending

_ANSWERS_PER_REFUSAL = 10
"""Of so many answers to one row that engines die under, its refusal gives budgets back as an answer does."""


def charge(tx: Tx, job_key: int, found: Iterable[Charge]) -> None:
    """Note charges. An event is charged once, for its first cause: a node may take two replicas along.

    A shard task that heard no verdict in time charges its loss itself. Where the driver has judged that loss
    meanwhile, its charges count and the shard task's do not.

    Comes before anything else in its transaction: see :func:`dray.store.jobs.alone`.
    """
    found = list(found)
    if found:
        alone(tx, job_key)  # else two processes that find the event uncharged would both charge it
    for one in found:
        if _cause_of(tx, job_key, one.event) not in (None, one.cause) or _is_judged(tx, job_key, one.event):
            continue
        tx.execute(
            insert_ignoring(tx, charges).values(
                job_key=job_key,
                budget=one.budget,
                scope=one.scope,
                event=one.event,
                cause=one.cause,
                answered=_answered(tx, job_key, one.scope),
                charged_at=tx.now,
            )
        )


def _cause_of(tx: Tx, job_key: int, event: str) -> str | None:
    known = select(charges.c.cause).where(charges.c.job_key == job_key, charges.c.event == event)
    return tx.execute(known).scalars().first()


def _is_judged(tx: Tx, job_key: int, event: str) -> bool:
    """Whether ``event`` is an attempt's own loss of a replica, and the driver has charged that loss."""
    attempt = attempt_of(event)
    if attempt is None:
        return False
    shard, epoch = attempt
    judged = (
        select(charges.c.event)
        .join(replicas, and_(replicas.c.job_key == charges.c.job_key, replicas.c.event == charges.c.event))
        .join(attempts, and_(attempts.c.job_key == replicas.c.job_key, attempts.c.replica == replicas.c.name))
        .where(attempts.c.job_key == job_key, attempts.c.shard == shard, attempts.c.epoch == epoch)
        .where(attempts.c.evidence.is_not(None))
    )
    return tx.execute(judged.limit(1)).first() is not None


def spent(tx: Tx, job_key: int, asked: Iterable[Spending], *, besides: str = "") -> list[int]:
    """What was charged to each budget, without the event ``besides``."""
    answered: dict[str, int] = {}
    return [_spent(tx, job_key, one, answered, besides) for one in asked]


def _spent(tx: Tx, job_key: int, asked: Spending, answered: dict[str, int], besides: str = "") -> int:
    """``answered`` has the rows of scopes that were counted for another budget of this transaction."""
    which: ColumnElement[bool] = and_(
        charges.c.job_key == job_key,
        charges.c.budget == asked.budget,
        charges.c.scope == asked.scope,
        charges.c.event != besides,
    )
    counted = select(func.count()).select_from(charges).where(which)
    count = int(tx.execute(counted).scalar_one())
    if asked.within is None or not count:
        return count
    if asked.scope not in answered:
        answered[asked.scope] = _answered(tx, job_key, asked.scope)
    total = tx.execute(select(jobs.c.total).where(jobs.c.job_key == job_key)).scalar_one() or 0
    since = answered[asked.scope] - int(asked.within * total)
    return int(tx.execute(counted.where(charges.c.answered >= since)).scalar_one())


def retract(tx: Tx, job_key: int, events: Collection[str]) -> None:
    """Take charges back whose losses another event names.

    Comes before anything else in its transaction: see :func:`dray.store.jobs.alone`.
    """
    if events:
        alone(tx, job_key)
        tx.execute(delete(charges).where(charges.c.job_key == job_key, charges.c.event.in_(events)))


def losses(tx: Tx, job_key: int, cause: str, *, besides: str = "") -> int:
    """Losses that were charged for this cause, to whatever budget, without the event ``besides``."""
    counted = select(func.count(charges.c.event.distinct())).where(
        charges.c.job_key == job_key, charges.c.cause == cause, charges.c.event != besides
    )
    return int(tx.execute(counted).scalar_one())


def scopes(tx: Tx, job_key: int, budget: str, *, above: int, within: float | None) -> list[str]:
    """The scopes of a budget that were charged more than ``above`` times."""
    charged = select(charges.c.scope).where(charges.c.job_key == job_key, charges.c.budget == budget)
    often = charged.group_by(charges.c.scope).having(func.count() > above)
    found = [
        Spending(budget=budget, scope=scope, within=within) for scope in tx.execute(often).scalars().all()
    ]
    return [one.scope for one, count in zip(found, spent(tx, job_key, found), strict=True) if count > above]


def listing(tx: Tx, job_key: int) -> list[Charge]:
    """All charges of a job, oldest first."""
    rows = tx.execute(
        select(*(charges.c[name] for name in Charge.__dataclass_fields__))
        .where(charges.c.job_key == job_key)
        .order_by(charges.c.charged_at, charges.c.budget, charges.c.scope)
    )
    return [Charge(**row._mapping) for row in rows]


def _answered(tx: Tx, job_key: int, scope: str) -> int:
    """Rows that an engine answered: at a node, at a place, or in the whole job; error rows do not count.

    Except for rows that engines die under, in the whole job while they are few: to find one is to get on.
    """
    if not scope:
        return _answered_or_refused(tx, job_key)
    total = select(func.coalesce(func.sum(attempts.c.done), 0)).where(attempts.c.job_key == job_key)
    node, lane = split_place(scope)
    if lane:
        total = total.where(or_(*(_is_of(lane, prefix) for prefix in ("", "%/"))))
    if not node:
        return int(tx.execute(total).scalar_one())
    rows = int(tx.execute(total.where(attempts.c.node == node)).scalar_one())
    beside = _with_a_part_on(tx, job_key, node)  # by itself: each of the two has an index
    return rows + (int(tx.execute(total.where(attempts.c.replica.in_(beside))).scalar_one()) if beside else 0)


def _answered_or_refused(tx: Tx, job_key: int) -> int:
    """Never falls, as neither count does. Where no engine answers, no refusal counts."""
    convicted = func.sum(shards.c.failed).filter(shards.c.crashes >= 2)  # see conditions.is_convicted
    counted = select(func.coalesce(func.sum(shards.c.done), 0), func.coalesce(convicted, 0))
    done, refused = tx.execute(counted.where(shards.c.job_key == job_key)).one()
    return int(done) + min(int(refused), int(done) // _ANSWERS_PER_REFUSAL)


def _with_a_part_on(tx: Tx, job_key: int, node: str) -> list[str]:
    """Replicas on several nodes whose process is elsewhere: their attempts have the node of that."""
    several = select(replicas.c.name, replicas.c.node).where(
        replicas.c.job_key == job_key, replicas.c.node.contains("+")
    )
    return [row.name for row in tx.execute(several) if node in apart(row.node)[1:]]


def _is_of(lane: str, prefix: str) -> ColumnElement[bool]:
    """Whether an attempt's replica, under names that begin so, is of a lane."""
    return or_(attempts.c.replica.like(f"{prefix}{lane}"), attempts.c.replica.like(f"{prefix}{lane}~%"))
