"""Jobs: the driver's lease, states, cancel and expiry. Functions on one open transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, delete, exists, false, func, or_, select, true, update

from dray.errors import CancelledError, FencedError, JobBusyError, UnknownJobError
from dray.owner import owner_in_words
from dray.store import routing
from dray.store.attempt_causes import AttemptCause
from dray.store.attempts import close_attempts
from dray.store.database.connection import Tx
from dray.store.database.schema import charges, jobs, shards
from dray.store.option import store_option
from dray.store.records import Fingerprint, Job, JobLease, StopSignals
from dray.store.states import JobState, ShardState

_ANSWERED = [one.value for one in JobState if one.answered]
PREFIX = "deleted:"
"""How the names of jobs begin that are being deleted; no job's own name holds a colon."""

_CLOSED = [one.value for one in JobState if one.at_rest and one is not JobState.PAUSED]


def find(tx: Tx, job_id: str) -> Job | None:
    """The job, or None."""
    row = tx.execute(select(jobs).where(jobs.c.job_id == job_id)).first()
    return None if row is None else job_of(row)


def numbered(tx: Tx, job_id: str) -> list[Job]:
    """The job, and those whose ids begin with it and a dot: ``ID.2`` and so on; in no order."""
    ours = or_(jobs.c.job_id == job_id, jobs.c.job_id.startswith(f"{job_id}.", autoescape=True))
    return [job_of(row) for row in tx.execute(select(jobs).where(ours))]


def get(tx: Tx, job_id: str, store: str) -> Job:
    """The job, or UnknownJobError."""
    job = find(tx, job_id)
    if job is None:
        where = store_option(tx.connection.engine.url)
        raise UnknownJobError(f"no job {job_id!r} in store {store}: `dray jobs{where}` lists its jobs")
    return job


def driven(tx: Tx, lease: JobLease) -> Job:
    """The job of the lease, or FencedError."""
    row = tx.execute(select(jobs).where(_held(lease))).first()
    if row is None:
        raise superseded(lease)
    return job_of(row)


def of_key(tx: Tx, job_key: int, *, locked: bool = False) -> Job | None:
    """The job that has this key now, or None; ``locked`` keeps it as it is until the commit."""
    query = select(jobs).where(jobs.c.job_key == job_key)
    row = tx.execute(query.with_for_update() if locked else query).first()
    return None if row is None else job_of(row)


def same(seen: Job) -> ColumnElement[bool]:
    """The condition that a row is the job ``seen``: SQLite gives the key of a deleted job to another one."""
    return and_(
        jobs.c.job_key == seen.key, jobs.c.job_id == seen.job_id, jobs.c.created_at == seen.created_at
    )


def check_present(tx: Tx, seen: Job) -> None:
    """Raise UnknownJobError when the job was deleted since it was ``seen``.

    Ask this after the rows were read: a deletion that begins later has left all of them.
    """
    if tx.execute(select(jobs.c.job_key).where(same(seen))).first() is None:
        raise UnknownJobError(
            f"job {seen.job_id!r} was deleted while its rows were read, and not all of them were there"
        )


def latest(tx: Tx, limit: int) -> list[Job]:
    """The newest jobs first."""
    present = select(jobs).where(jobs.c.job_id.not_like(f"{PREFIX}%"))
    return [job_of(row) for row in tx.execute(present.order_by(jobs.c.job_key.desc()).limit(limit))]


def buried(tx: Tx) -> list[Job]:
    """Jobs whose deletion is not over, oldest first."""
    found = select(jobs).where(jobs.c.job_id.like(f"{PREFIX}%"))
    return [job_of(row) for row in tx.execute(found.order_by(jobs.c.job_key))]


def ended(tx: Tx, seconds: float) -> list[Job]:
    """Jobs that ended at least so many seconds ago and have no live driver, oldest first."""
    found = select(jobs).where(
        jobs.c.job_id.not_like(f"{PREFIX}%"),
        jobs.c.state.in_(_CLOSED),
        jobs.c.updated_at <= tx.now - seconds,
        or_(jobs.c.driver_owner.is_(None), jobs.c.driver_until <= tx.now),
    )
    return [job_of(row) for row in tx.execute(found.order_by(jobs.c.job_key))]


def claim(tx: Tx, seen: Job, owner: str, *, ttl: float, seize: bool, resume: bool = False) -> JobLease | None:
    """Take the job for ``owner``, or None when it changed since it was ``seen``.

    Shards leased under the older epoch are released with their epoch raised, which fences the shard
    tasks that hold them. ``seize`` takes the job even from a live lease. ``resume`` takes also a job that
    was cancelled for good. With ``resume``, a job that was at rest gets its full budgets again: its user
    could act. A job that runs, or whose driver died, does not.
    """
    # Spelled with OR, because NOT of a comparison with NULL is NULL.
    free = or_(jobs.c.driver_owner.is_(None), jobs.c.driver_owner == owner, jobs.c.driver_until <= tx.now)
    taken = tx.execute(
        update(jobs)
        .where(same(seen), jobs.c.epoch == seen.epoch, true() if seize else free)
        .where(true() if resume else or_(jobs.c.cancelled_at.is_(None), _over()))
        .values(
            epoch=jobs.c.epoch + 1,
            driver_owner=owner,
            driver_until=tx.now + ttl,
            cancel_requested=False,
            cancelled_at=None,
            state=case((_over(), jobs.c.state), else_=_resumed_state()),
            reason=case((_over(), jobs.c.reason), else_=None),
            updated_at=tx.now,
        )
        .returning(jobs.c.epoch)
    ).first()
    if taken is None:
        if not seize:
            _refuse_if_busy(tx, seen, free)
        if not resume:
            _refuse_if_cancelled(tx, seen)
        return None
    _release_all(tx, seen.key)
    routing.clear(tx, seen.key)
    if resume and seen.state.at_rest:
        tx.execute(delete(charges).where(charges.c.job_key == seen.key))  # attempts still say what happened
    return JobLease(job_id=seen.job_id, key=seen.key, epoch=taken.epoch, owner=owner, ttl=ttl)


def _over() -> ColumnElement[bool]:
    """Completed, or expired with an outcome for every row: nothing is left to go on with."""
    left = exists().where(
        shards.c.job_key == jobs.c.job_key,
        shards.c.state.in_([ShardState.PENDING.value, ShardState.LEASED.value]),
    )
    return or_(
        jobs.c.state == JobState.COMPLETED.value,
        and_(jobs.c.state == JobState.EXPIRED.value, jobs.c.total.is_not(None), ~left),
    )


def _resumed_state() -> ColumnElement[str]:
    return case((jobs.c.total.is_(None), JobState.VALIDATING.value), else_=JobState.IN_PROGRESS.value)


def _refuse_if_busy(tx: Tx, seen: Job, free: ColumnElement[bool]) -> None:
    left = (jobs.c.driver_until - tx.now).label("left")
    row = tx.execute(
        select(jobs.c.driver_owner, left).where(jobs.c.job_key == seen.key, jobs.c.epoch == seen.epoch, ~free)
    ).first()
    if row is not None:
        where = store_option(tx.connection.engine.url)
        raise JobBusyError(
            f"job {seen.job_id!r} is being run by {owner_in_words(row.driver_owner)}, whose lease has "
            f"{row.left:.0f} s left unless renewed; `dray status {seen.job_id} --watch{where}` follows it, "
            f"and `dray cancel {seen.job_id}{where}` stops it",
            left=float(row.left),
        )


def _refuse_if_cancelled(tx: Tx, seen: Job) -> None:
    at = tx.execute(
        select(jobs.c.cancelled_at).where(jobs.c.job_key == seen.key, jobs.c.epoch == seen.epoch, ~_over())
    ).scalar()
    if at is not None:
        where = store_option(tx.connection.engine.url)
        when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        raise CancelledError(
            f"job {seen.job_id} was cancelled at {when}; finished rows are kept, and "
            f"`dray resume {seen.job_id}{where}` (or --resume) goes on with it",
            at=at,
        )


def _release_all(tx: Tx, job_key: int) -> None:
    leased = and_(shards.c.job_key == job_key, shards.c.state == ShardState.LEASED.value)
    released = tx.execute(
        update(shards)
        .where(leased)
        .values(
            state=ShardState.PENDING.value,
            epoch=shards.c.epoch + 1,
            owner=None,
            lease_until=None,
            replica=None,
        )
        .returning(shards.c.number)
    ).all()
    if released:
        close_attempts(tx, job_key, [row.number for row in released], cause=AttemptCause.DRIVER_LOST)


def renew(tx: Tx, lease: JobLease) -> None:
    """Extend the driver's lease."""
    hit = tx.execute(update(jobs).where(_held(lease)).values(driver_until=tx.now + lease.ttl)).rowcount
    if hit != 1:
        raise superseded(lease)


def release(tx: Tx, lease: JobLease) -> None:
    """Give the lease back. Nothing happens when another driver has taken the job."""
    tx.execute(update(jobs).where(_held(lease)).values(driver_owner=None, driver_until=None))


def change(tx: Tx, lease: JobLease, **values: Any) -> None:
    """Set columns of the job, fenced by the lease."""
    hit = tx.execute(update(jobs).where(_held(lease)).values(updated_at=tx.now, **values)).rowcount
    if hit != 1:
        raise superseded(lease)


def set_state(tx: Tx, lease: JobLease, state: JobState, reason: str | None) -> None:
    """Move the job to ``state``. An expired job stays expired, and gets the reason alone.

    Expiry is final: a driver that fails to write the files of an expired job, or is cancelled meanwhile,
    must not make a job of it that the next driver finds complete. Only a claim goes on with rows left.
    """
    final = jobs.c.state == JobState.EXPIRED.value
    change(tx, lease, state=case((final, jobs.c.state), else_=state.value), reason=reason)


def merge_info(tx: Tx, lease: JobLease, info: Mapping[str, Any], **values: Any) -> None:
    """Merge top-level keys into the job's ``info``, and set other columns, fenced by the lease."""
    # The update that takes the row's lock comes first, so that no merge between can be lost.
    change(tx, lease)
    merged = {**tx.execute(select(jobs.c.info).where(jobs.c.job_key == lease.key)).scalar_one(), **info}
    change(tx, lease, info=merged, **values)


def request_cancel(tx: Tx, job_id: str, *, for_good: bool, by: JobLease | None = None) -> bool:
    """Ask the driver to stop; false when there is no such job. Nothing changes for one that has its rows.

    ``by`` is the lease of the driver that asks for its own run: once another has taken the job, it is no such
    job. A lease that was given back is still the last one.
    """
    asked: dict[str, Any] = {"cancel_requested": or_(jobs.c.cancel_requested, jobs.c.state.not_in(_CLOSED))}
    if for_good:
        since = func.coalesce(jobs.c.cancelled_at, tx.now)
        asked["cancelled_at"] = case((jobs.c.state.in_(_ANSWERED), jobs.c.cancelled_at), else_=since)
    which = jobs.c.job_id == job_id
    if by is not None:
        ours = or_(jobs.c.driver_owner.is_(None), jobs.c.driver_owner == by.owner)
        which = and_(jobs.c.job_key == by.key, jobs.c.epoch == by.epoch, ours)
    return bool(tx.execute(update(jobs).where(which).values(asked)).rowcount)


def pause(tx: Tx, lease: JobLease, reason: str) -> bool:
    """Put a job that still runs to rest, upon which its shards stop; false for one that has come to an end.

    Raises:
        FencedError: the lease is another driver's.
    """
    over = [*_CLOSED, JobState.FINALIZING.value]
    hit = tx.execute(
        update(jobs)
        .where(_held(lease), jobs.c.state.not_in(over))
        .values(state=JobState.PAUSED.value, reason=reason, updated_at=tx.now)
    ).rowcount
    if hit != 1:
        change(tx, lease)  # raises when the lease is lost
    return hit == 1


def cancel_undriven(tx: Tx, seen: Job, *, seize: bool) -> bool:
    """Cancel a job that no driver works on, as it was ``seen``; a driver that comes back is fenced.

    ``seize`` says that its driver is known to be dead, although its lease is live. False when the job has a
    live driver, has ended, or changed since it was seen.
    """
    free = or_(jobs.c.driver_owner.is_(None), jobs.c.driver_until <= tx.now)
    hit = tx.execute(
        update(jobs)
        .where(
            same(seen),
            jobs.c.epoch == seen.epoch,
            jobs.c.state.not_in(_CLOSED),
            true() if seize else free,
        )
        .values(
            epoch=jobs.c.epoch + 1,
            driver_owner=None,
            driver_until=None,
            cancel_requested=True,
            cancelled_at=func.coalesce(jobs.c.cancelled_at, tx.now),
            state=JobState.CANCELLED.value,
            reason="cancelled while no driver worked on it",
            updated_at=tx.now,
        )
    ).rowcount
    if hit == 1:
        _release_all(tx, seen.key)
        routing.clear(tx, seen.key)
    return bool(hit == 1)


def stop_signals(tx: Tx, job_key: int) -> StopSignals:
    """What is to become of the job, by the database's clock. FencedError for one that was deleted."""
    over = func.coalesce(jobs.c.expires_at <= tx.now, false())
    wanted = select(jobs.c.cancel_requested, over, jobs.c.state).where(jobs.c.job_key == job_key)
    found = tx.execute(wanted).first()
    if found is None:
        raise FencedError("the job was deleted; stop")
    cancelled, expired, state = found
    return StopSignals(cancelled=bool(cancelled), expired=bool(expired), at_rest=JobState(state).at_rest)


def set_expiry(tx: Tx, lease: JobLease, seconds: float | None) -> None:
    """The job's time is over so many seconds after its creation."""
    change(tx, lease, expires_at=None if seconds is None else jobs.c.created_at + seconds)


def postpone(tx: Tx, lease: JobLease, seconds: float) -> None:
    """The job's time is over so many seconds from now."""
    change(tx, lease, expires_at=tx.now + seconds)


def has_driver(tx: Tx, job_key: int) -> bool:
    """Whether a driver's lease is live."""
    live = and_(jobs.c.job_key == job_key, jobs.c.driver_owner.is_not(None), jobs.c.driver_until > tx.now)
    return tx.execute(select(jobs.c.job_key).where(live)).first() is not None


def check_driver(tx: Tx, lease: JobLease, *, alone: bool = False) -> None:
    """Raise FencedError unless the lease is the job's; keep it so until the commit.

    The owner counts, too: a database that went back to an earlier state gives an epoch twice.
    ``alone`` also keeps others from doing this until then.
    """
    query = select(jobs.c.epoch, jobs.c.driver_owner).where(jobs.c.job_key == lease.key)
    driver = tx.execute(query.with_for_update(read=not alone)).first()
    if driver is None or tuple(driver) != (lease.epoch, lease.owner):
        raise superseded(lease)


def alone(tx: Tx, job_key: int) -> None:
    """Make other callers wait until the commit. A transaction that locks shards too calls this first."""
    own = select(jobs.c.job_key).where(jobs.c.job_key == job_key)
    tx.execute(own.with_for_update(key_share=True))


def superseded(lease: JobLease) -> FencedError:
    """The error of a driver whose job was taken by another."""
    return FencedError(f"job {lease.job_id!r}: another driver took over after epoch {lease.epoch}; stop")


def _held(lease: JobLease) -> ColumnElement[bool]:
    return and_(jobs.c.job_key == lease.key, jobs.c.epoch == lease.epoch, jobs.c.driver_owner == lease.owner)


def job_of(row: Row[Any]) -> Job:
    """A row of the table as a job."""
    return Job(
        job_id=row.job_id,
        state=JobState(row.state),
        epoch=row.epoch,
        fingerprint=Fingerprint(**row.fingerprint),
        settings=row.settings,
        total=row.total,
        created_at=row.created_at,
        updated_at=row.updated_at,
        driver=row.driver_owner,
        driver_until=row.driver_until,
        cancel_requested=row.cancel_requested,
        reason=row.reason,
        summary=row.summary,
        info=row.info,
        expires_at=row.expires_at,
        cancelled_at=row.cancelled_at,
        key=row.job_key,
    )
