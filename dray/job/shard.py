"""Run one shard: lease it, feed its rows to a replica, commit what comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from dray.engine.client import ReplicaClient
from dray.errors import CancelledError, FencedError, ReplicaLostError, StoreError
from dray.requests.objects import ObjectStoreOptions
from dray.requests.spool import index_of, read_shard
from dray.store import JobLease, Shard, ShardLease, Store

LEASE_TTL = 90.0  # seconds; longer than Ray takes to notice a dead node (about 65 s)
RENEW_EVERY = 15.0
STOP_BEFORE_EXPIRY = 15.0  # by the holder's own monotonic clock
CANCEL_CHECK_EVERY = 1.0
MICRO_BATCH_ROWS = 256
# Rows in the replica and on their way to it, in engine batches: one runs, one waits, half is in transit.
FEED_AHEAD = 2.5
FEED_ROWS = 128


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
    job: JobLease,
    shard: Shard,
    replica: ReplicaClient,
    *,
    owner: str,
    max_num_seqs: int,
    options: ObjectStoreOptions | None = None,
) -> ShardReceipt | None:
    """Take the shard's lease, run what is not terminal, and end it; None when it is done or held already.

    Raises:
        CancelledError: the job was cancelled; finished rows are kept.
        FencedError: the lease was lost; the rows belong to somebody else now.
        ReplicaLostError, EngineDeadError: the replica went away; the shard was given back.
    """
    began = time.monotonic()
    lease = store.claim_shard(job, shard.number, owner=owner, replica=replica.name, ttl=LEASE_TTL)
    if lease is None:
        return None
    try:
        done = frozenset(store.done_indexes(job.job_id, shard.first_index, shard.last_index))
        rows = _Rows(shard, done, options, chunk_rows=min(FEED_ROWS, max_num_seqs))
        with _Holder(store, lease, on_stop=lambda: replica.abort(_session(lease))) as holder:
            committed = _pump(store, holder, replica, rows, window=int(FEED_AHEAD * max_num_seqs))
        last_commit = time.time() if committed else None
        store.finish_shard(lease)
    except FencedError:
        replica.abort(_session(lease))
        raise
    except BaseException as error:
        _give_back(store, lease, error)
        raise
    return ShardReceipt(
        number=shard.number,
        rows=committed,
        skipped=len(done),
        seconds=time.monotonic() - began,
        last_commit=last_commit,
        replica=replica.name,
    )


class _Rows:
    """The rows of a shard that are still to run, in chunks."""

    def __init__(
        self,
        shard: Shard,
        done: frozenset[int],
        options: ObjectStoreOptions | None,
        *,
        chunk_rows: int = FEED_ROWS,
    ) -> None:
        self._chunks = self._read(shard, done, options, chunk_rows)
        self._next = next(self._chunks, None)

    @staticmethod
    def _read(
        shard: Shard, done: frozenset[int], options: ObjectStoreOptions | None, chunk_rows: int
    ) -> Iterator[list[bytes]]:
        for chunk in read_shard(
            shard.uri, shard.offset, shard.length, chunk_rows=chunk_rows, options=options
        ):
            rows = [line for line in chunk if index_of(line) not in done] if done else chunk
            if rows:
                yield rows

    def take(self) -> tuple[list[bytes], bool]:
        """The next chunk, and whether it is the last one; the first is empty when all is done."""
        chunk, self._next = self._next or [], next(self._chunks, None)
        return chunk, self._next is None


def _pump(store: Store, holder: _Holder, replica: ReplicaClient, rows: _Rows, *, window: int) -> int:
    """Keep ``window`` rows in flight, and commit each micro-batch as it comes back."""
    lease = holder.lease
    session = _session(lease)
    outstanding = committed = 0
    last = False

    def feed() -> None:
        nonlocal outstanding, last
        while not last and outstanding < window:
            chunk, last = rows.take()
            replica.feed(session, chunk, last)
            outstanding += len(chunk)

    feed()
    for batch in replica.results(session, MICRO_BATCH_ROWS):
        outstanding -= len(batch)
        feed()
        receipt = store.commit(lease, batch)
        holder.renewed()
        committed += receipt.inserted
        if receipt.cancel_requested:
            holder.cancel()
    holder.check()
    return committed


class _Holder:
    """Keeps a lease alive while its rows run, and stops the run when it must stop.

    ``on_stop`` ends the stream of results, from a thread of its own.
    """

    def __init__(self, store: Store, lease: ShardLease, *, on_stop: Callable[[], None]) -> None:
        self.lease = lease
        self._store = store
        self._on_stop = on_stop
        self._renewed_at = time.monotonic()
        self._over = threading.Event()
        self._reason: StoreError | CancelledError | None = None
        self._thread = threading.Thread(target=self._watch, name=f"lease-{lease.number}", daemon=True)

    def __enter__(self) -> _Holder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def renewed(self) -> None:
        """A commit extended the lease."""
        self._renewed_at = time.monotonic()

    def cancel(self) -> None:
        """The job was cancelled."""
        self._stop(CancelledError(f"job {self.lease.job_id} was cancelled"))

    def check(self) -> None:
        """Raise the reason for which the run was stopped, if it was."""
        if self._reason is not None:
            raise self._reason

    def _stop(self, reason: StoreError | CancelledError) -> None:
        if self._reason is None:
            self._reason = reason
            self._on_stop()

    def _watch(self) -> None:
        while not self._over.wait(CANCEL_CHECK_EVERY):
            try:
                self._look()
            except FencedError as error:
                return self._stop(error)
            except StoreError:
                pass  # the store is away: the lease runs on, and is given up in time below
            if time.monotonic() - self._renewed_at > LEASE_TTL - STOP_BEFORE_EXPIRY:
                return self._stop(FencedError(f"shard {self.lease.number}: the lease could not be renewed"))
        return None

    def _look(self) -> None:
        if self._store.cancel_requested(self.lease.job_id):
            self.cancel()
        if time.monotonic() - self._renewed_at > RENEW_EVERY:
            self._store.renew_shard(self.lease)
            self.renewed()


def _session(lease: ShardLease) -> str:
    return f"{lease.job_id}/{lease.number}/{lease.epoch}"


def _give_back(store: Store, lease: ShardLease, error: BaseException) -> None:
    """Release the shard so that it can be claimed at once; a store that is away lets the lease lapse."""
    cause = (
        "CANCEL"
        if isinstance(error, CancelledError)
        else ("NODE_LOSS" if isinstance(error, ReplicaLostError) else "UNKNOWN")
    )
    with suppress(StoreError):  # nothing is lost: the lease ends by itself
        store.release_shard(lease, cause=cause, detail=type(error).__name__)
