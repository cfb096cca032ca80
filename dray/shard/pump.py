"""Run one leased shard: feed its rows to a replica, commit what comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from dray.engine.client import ReplicaClient
from dray.requests.model import Outcome
from dray.requests.spool.spool import index_of
from dray.shard.commit_outage import CommitOutage
from dray.shard.committing import Commits
from dray.shard.lease import ShardLeaseKeeper
from dray.shard.media_rows import files_named_in, with_media_files
from dray.shard.open_rows import OpenLines, Rows, open_lines
from dray.shard.placing import Place
from dray.shard.proof import proof_session, prove
from dray.shard.work import OpenWork, ShardReceipt
from dray.store import ShardLease
from dray.triggers import Point, reach

MICRO_BATCH_ROWS = 256
# Rows in the replica and on their way to it, in engine batches: one runs, one waits, half is in transit.
FEED_AHEAD = 2.5
FEED_ROWS = 128
FEED_BYTES = 256 * 1024 * 1024
"""Bytes of rows in the replica and on their way to it, for one of two shards: what an engine admits."""


@dataclass
class Fed:
    """How far one attempt has fed its shard to the replica: if it fails, `Ending` looks there for the cause.

    ``position`` is that after the last row that was fed; None until one is. ``proven`` says that the engine
    answered a test request of dray's own first: it worked before it had any row of the shard.
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
        """The window of one of ``slots`` shards, on a replica that runs ``max_num_seqs`` requests at once."""
        return cls(int(FEED_AHEAD * max_num_seqs), 2 * FEED_BYTES // max(slots, 2))


def run_shard(
    work: OpenWork, lease: ShardLease, place: Place, fed: Fed, outage: CommitOutage
) -> ShardReceipt:
    """Run what is not terminal of a leased shard, and end it. Errors leave the lease as it is.

    ``fed`` is kept up to date, and ``outage`` goes on from attempt to attempt. A suspect's engine answers a
    request of dray's own first.

    Raises:
        CancelledError, ExpiredError: the job was cancelled, or its time is over.
        FencedError: the lease was lost; the rows belong to another holder now.
        LeaseLapsedError: the store was away for longer than the lease, or this process was, for the replica.
        StoreTransientError: its rows cannot be read just now, or the store has taken none for too long.
        ReplicaLostError, EngineDeadError: the replica went away.
    """
    began, store, replica = time.monotonic(), work.store, place.client
    abort = partial(_abort, replica, lease)
    try:
        say = partial(_say, replica, lease)
        with ShardLeaseKeeper(store, lease, on_stop=abort, say=say) as holder:
            commits = Commits(store, holder, outage)
            chunk_rows = min(FEED_ROWS, place.seqs)
            lines = open_lines(work.shard, commits.finished(), work.objects, chunk_rows=chunk_rows)
            rows = _with_media(lines, work, holder)
            if lease.suspect and rows.first is not None:
                prove(replica, session_of(lease), rows.first)
                holder.check()
                fed.proven = True
            feed = _Feed(replica, session_of(lease), rows, fed, Window.of(place.seqs, place.slots))
            _pump(feed, commits, holder, commit_seconds=work.commit_seconds, waits=bool(work.roots))
    except BaseException:
        abort()  # the next attempt at the shard feeds its rows again
        raise
    last_commit = time.time() if commits.rows else None
    reach(Point.FINISH_BEFORE)
    with outage.trying():
        store.finish_shard(lease)
    reach(Point.FINISH_AFTER)
    return ShardReceipt(
        number=work.shard.number,
        rows=commits.rows,
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


def _with_media(lines: Iterator[OpenLines], work: OpenWork, holder: ShardLeaseKeeper) -> Rows:
    others = partial(files_named_in, work.shard.uri, work.objects)
    return Rows(with_media_files(lines, work.roots, work.objects, holder.check, others))


class _Feed:
    """Rows in a replica and on their way to it: as many as ``window`` allows."""

    def __init__(self, replica: ReplicaClient, session: str, rows: Rows, fed: Fed, window: Window) -> None:
        self._replica = replica
        self._session = session
        self._rows = rows
        self._fed = fed
        self._window = window
        self._outstanding: dict[int, int] = {}  # index -> bytes
        self._size = 0
        self._last = False
        self.refused: list[Outcome] = []

    def fill(self, commits: Commits) -> None:
        """Feed as much as there is room for; what is refused before is committed where it is much."""
        while (
            not self._last and len(self._outstanding) < self._window.rows and self._size < self._window.size
        ):
            chunk, self._last = self._rows.take()
            reach(Point.FEED)
            lines = chunk.lines if chunk else []
            if chunk:
                self._fed.position = chunk.end
                self.refused.extend(chunk.refused)
            if len(self.refused) >= MICRO_BATCH_ROWS:
                commits.commit(self.take_refused())
            self._replica.feed(self._session, lines, self._last)
            self._outstanding.update((index_of(line), len(line)) for line in lines)
            self._size += sum(map(len, lines))

    def results(self, commit_seconds: float) -> Iterator[list[Outcome]]:
        """What comes back, in micro-batches."""
        for batch in self._replica.results(self._session, MICRO_BATCH_ROWS, commit_seconds):
            self._size -= sum(self._outstanding.pop(outcome.index, 0) for outcome in batch)
            yield batch

    def take_refused(self) -> list[Outcome]:
        """Rows that were refused before the replica saw them, since the last call."""
        refused, self.refused = self.refused, []
        return refused


def _pump(
    feed: _Feed, commits: Commits, holder: ShardLeaseKeeper, *, commit_seconds: float, waits: bool
) -> None:
    """Keep the replica's window full, and commit each micro-batch as it comes back.

    ``waits``: the next rows may have to be waited for.
    """
    feed.fill(commits)
    for batch in feed.results(commit_seconds):
        if not waits:
            feed.fill(commits)
        reach(Point.RESULTS_RECEIVED)
        commits.commit([*batch, *feed.take_refused()])
        if waits:  # for files: what is finished must not wait with it
            feed.fill(commits)
    holder.check()
    if feed.refused:
        commits.commit(feed.take_refused())


def session_of(lease: ShardLease) -> str:
    """The name of an attempt's session at a replica."""
    return f"{lease.job_id}/{lease.number}/{lease.epoch}"
