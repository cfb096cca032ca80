"""Run one leased shard: feed its rows to a replica, commit what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from dray import history
from dray.engine.batches import too_large
from dray.engine.client import ReplicaClient
from dray.engine.replica import FLUSH_SECONDS
from dray.errors import StoreFatalError, StoreTransientError, StoreUnreachableError, ValueTooLargeError
from dray.requests.media import Roots
from dray.requests.model import Outcome
from dray.requests.spool import index_of
from dray.shard.lease import ShardLeaseKeeper
from dray.shard.media_rows import files_named_in, with_media_files
from dray.shard.open_rows import Finished, OpenLines, Rows, open_lines
from dray.shard.proof import proof_session, prove
from dray.shard.untaken import Untaken
from dray.storage.objects import ObjectStoreOptions
from dray.store import CommitReceipt, Shard, ShardLease, Store
from dray.triggers import Point, reach

T = TypeVar("T")

MICRO_BATCH_ROWS = 256
# Rows in the replica and on their way to it, in engine batches: one runs, one waits, half is in transit.
FEED_AHEAD = 2.5
FEED_ROWS = 128
FEED_BYTES = 256 * 1024 * 1024
"""Bytes of rows in the replica and on their way to it, for one of two shards: what an engine admits."""


@dataclass
class Fed:
    """How far an attempt came: the position after the last row that was fed, None before the first.

    ``proven`` says that the engine had answered a request of dray's own before the first row.
    """

    position: int | None = None
    proven: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """How much of a shard is in the replica and on its way to it: ``rows``, and ``size`` in bytes."""

    rows: int
    size: int

    @classmethod
    def of(cls, max_num_seqs: int, slots: int) -> Window:
        """For one of the ``slots`` shards of a replica that runs ``max_num_seqs`` requests at a time."""
        return cls(int(FEED_AHEAD * max_num_seqs), 2 * FEED_BYTES // max(slots, 2))


@dataclass(frozen=True, kw_only=True)
class ShardReceipt:
    """What one attempt at a shard did.

    ``rows`` were committed by it, ``skipped`` found done; ``last_commit`` is in seconds since 1970.
    """

    number: int
    rows: int
    skipped: int
    seconds: float
    last_commit: float | None
    replica: str


def run_shard(
    store: Store,
    lease: ShardLease,
    shard: Shard,
    replica: ReplicaClient,
    *,
    max_num_seqs: int,
    slots: int = 2,
    commit_seconds: float = FLUSH_SECONDS,
    fed: Fed | None = None,
    untaken: Untaken | None = None,
    options: ObjectStoreOptions | None = None,
    roots: Roots = MappingProxyType({}),
) -> ShardReceipt:
    """Run what is not terminal of a leased shard, and end it. Errors leave the lease as it is.

    ``slots`` shards share the replica, and the bytes that it may hold. A finished row waits at most
    ``commit_seconds`` for its commit. ``fed`` is kept up to date: `Ending` uses it to look for the row that
    ended the attempt. ``untaken`` goes on from attempt to attempt. A suspect's engine answers a request of
    dray's own first. Files that rows name are read from below ``roots``.

    Raises:
        CancelledError, ExpiredError: the job was cancelled, or its time is over.
        FencedError: the lease was lost; the rows belong to another holder now.
        LeaseLapsedError: the store was away for longer than the lease, or this process was, for the replica.
        StoreTransientError: its rows cannot be read just now, or the store has taken none for too long.
        ReplicaLostError, EngineDeadError: the replica went away.
    """
    began, untaken, fed = time.monotonic(), untaken or Untaken(), fed or Fed()
    abort = partial(_abort, replica, lease)
    try:
        say = partial(_say, replica, lease)
        with ShardLeaseKeeper(store, lease, on_stop=abort, say=say) as holder:
            finished = _finished(store, holder, untaken)
            lines = open_lines(shard, finished, options, chunk_rows=min(FEED_ROWS, max_num_seqs))
            rows = _with_media(lines, shard, holder, roots, options)
            if lease.suspect and rows.first is not None:
                prove(replica, session_of(lease), rows.first)
                holder.check()
                fed.proven = True
            committed = _pump(
                store, holder, replica, rows, fed, untaken, window=Window.of(max_num_seqs, slots),
                commit_seconds=commit_seconds, waits=bool(roots),
            )  # fmt: skip
    except BaseException:
        abort()  # the next attempt at the shard feeds its rows again
        raise
    last_commit = time.time() if committed else None
    reach(Point.FINISH_BEFORE)
    with untaken.trying():
        store.finish_shard(lease)
    reach(Point.FINISH_AFTER)
    return ShardReceipt(
        number=shard.number,
        rows=committed,
        skipped=lease.terminal,
        seconds=time.monotonic() - began,
        last_commit=last_commit,
        replica=replica.name,
    )


def _abort(replica: ReplicaClient, lease: ShardLease) -> None:
    for session in _sessions(lease):
        replica.abort(session)


def _say(replica: ReplicaClient, lease: ShardLease) -> None:
    for session in _sessions(lease):
        replica.heartbeat(session)


def _sessions(lease: ShardLease) -> list[str]:
    session = session_of(lease)
    return [proof_session(session), session] if lease.suspect else [session]


def _with_media(
    lines: Iterator[OpenLines],
    shard: Shard,
    holder: ShardLeaseKeeper,
    roots: Roots,
    options: ObjectStoreOptions | None,
) -> Rows:
    others = partial(files_named_in, shard.uri, options)
    return Rows(with_media_files(lines, roots, options, holder.check, others))


def _pump(
    store: Store,
    holder: ShardLeaseKeeper,
    replica: ReplicaClient,
    rows: Rows,
    fed: Fed,
    untaken: Untaken,
    *,
    window: Window,
    commit_seconds: float,
    waits: bool,
) -> int:
    """Keep ``window`` in flight, and commit each micro-batch as it comes back.

    ``waits``: the next rows may have to be waited for.
    """
    lease = holder.lease
    session = session_of(lease)
    outstanding: dict[int, int] = {}  # index -> bytes
    refused: list[Outcome] = []
    size = committed = 0
    last = False

    def feed() -> None:
        nonlocal size, last, committed
        while not last and len(outstanding) < window.rows and size < window.size:
            chunk, last = rows.take()
            reach(Point.FEED)
            lines = chunk.lines if chunk else []
            if chunk:
                fed.position = chunk.end
                refused.extend(chunk.refused)
            if len(refused) >= MICRO_BATCH_ROWS:
                committed += _commit(store, holder, refused, untaken)
                refused.clear()
            replica.feed(session, lines, last)
            outstanding.update((index_of(line), len(line)) for line in lines)
            size += sum(map(len, lines))

    feed()
    for batch in replica.results(session, MICRO_BATCH_ROWS, commit_seconds):
        size -= sum(outstanding.pop(outcome.index, 0) for outcome in batch)
        if not waits:
            feed()
        reach(Point.RESULTS_RECEIVED)
        committed += _commit(store, holder, [*batch, *refused], untaken)
        refused.clear()
        if waits:  # for files: what is finished must not wait with it
            feed()
    holder.check()
    return committed + (_commit(store, holder, refused, untaken) if refused else 0)


def _finished(store: Store, holder: ShardLeaseKeeper, untaken: Untaken) -> Finished:
    """What of the shard was committed before this attempt; the store is asked as patiently as it is given."""
    lease = holder.lease

    def ask(indexes: Sequence[int]) -> list[int]:
        return _patiently(holder, untaken, lambda: store.done_indexes(lease.job_id, indexes))

    return Finished(ask, lease.terminal)


def _commit(store: Store, holder: ShardLeaseKeeper, batch: list[Outcome], untaken: Untaken) -> int:
    """Publish a micro-batch as soon as the store takes it, as long as the lease holds.

    Meanwhile nothing more is fed, and the replica's finished rows wait in its own memory. A lock on the table
    of results lets the lease be renewed all the time: that ends when ``untaken`` is too long.
    """
    try:
        receipt = _patiently(holder, untaken, lambda: publish(store, holder.lease, batch))
    except ValueTooLargeError:
        return sum(_commit(store, holder, part, untaken) for part in _without_the_largest(batch))
    untaken.taken()
    holder.renewed()
    holder.obey(receipt.orders)
    return receipt.inserted


def _patiently(holder: ShardLeaseKeeper, untaken: Untaken, ask: Callable[[], T]) -> T:
    """What the store gives, asked as long as the lease holds and the store is not away for too long."""
    while True:
        holder.check()
        try:
            with untaken.trying():
                return ask()
        except (StoreTransientError, StoreUnreachableError):
            if untaken.too_long:
                raise  # else again: the store has waited between its own tries


def _without_the_largest(batch: list[Outcome]) -> list[list[Outcome]]:
    """A batch that the database did not take, in two: the largest answer, as an error row, is on its own."""
    largest = max(batch, key=lambda outcome: len(outcome.response or b""))
    if largest.failed:
        raise StoreFatalError("the store refuses an error row as too large; this is a fault in dray")
    others = [outcome for outcome in batch if outcome is not largest]
    return [part for part in (others, [too_large(largest)]) if part]


def publish(store: Store, lease: ShardLease, batch: list[Outcome]) -> CommitReceipt:
    """Commit outcomes, where chaos tests can see it."""
    reach(Point.COMMIT_BEFORE)
    history.intent(lease, batch)
    receipt = store.commit(lease, batch)
    reach(Point.COMMIT_AFTER)
    history.ack(lease, batch)
    return receipt


def session_of(lease: ShardLease) -> str:
    """The name of an attempt's session at a replica."""
    return f"{lease.job_id}/{lease.number}/{lease.epoch}"
