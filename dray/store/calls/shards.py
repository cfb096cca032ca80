"""The store's calls about shards: cut, leased, committed to, split and ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from dray.requests.model import REUSED, Outcome
from dray.requests.sharing import Follower
from dray.store import claims, commit, shards
from dray.store import followers as led
from dray.store.calls.base import Calls
from dray.store.database.connection import Tx
from dray.store.presence import present
from dray.store.records import (
    REJECTED,
    Charge,
    Claim,
    CommitReceipt,
    Followed,
    JobLease,
    Shard,
    ShardLease,
    ShardSnapshot,
    ShardSpec,
)

SHARD_TTL = 90.0
"""Seconds a shard's lease lasts; more than the about 65 s that Ray takes to notice a hung node."""


class ShardCalls(Calls):
    """Shards, and the rows that are committed to them."""

    def add_shards(
        self,
        lease: JobLease,
        specs: Sequence[ShardSpec],
        *,
        total_rows: int,
        rejects: Iterable[Sequence[Outcome]] = (),
        reused: Iterable[Sequence[Outcome]] = (),
        followers: Iterable[Sequence[Follower]] = (),
    ) -> None:
        """End ingest: publish all shards, the job's total and state ``in_progress`` at once.

        ``rejects`` are the error outcomes of rows that entered no shard, ``reused`` the answers of such rows
        by earlier jobs, ``followers`` those that get the outcome of another row, all in batches. They are
        stored first, a transaction each, and count only once the shards are there. So the call can be
        repeated after a crash at any point, with other rows too.
        """
        # Rows are counted as they are stored. The server would end a statement that counts millions of them
        # in a write. No driver adds or takes any meanwhile: the lease fences earlier ones.
        self._write(partial(commit.forget_ingest, lease=lease), long=True)
        at_ingest = partial(commit.at_ingest, lease=lease)
        held = shards.HeldElsewhere(
            rejected=sum(
                self._write(partial(at_ingest, shard=REJECTED, outcomes=batch)) for batch in rejects
            ),
            reused=sum(self._write(partial(at_ingest, shard=REUSED, outcomes=batch)) for batch in reused),
            following=sum(self._write(partial(led.record, lease=lease, rows=rows)) for rows in followers),
        )
        self._write(lambda tx: shards.publish(tx, lease, specs, held, total_rows=total_rows))

    def answer_followers(self, lease: JobLease, after: int = -1) -> Followed:
        """Give followers past index ``after`` the outcome of their leaders, where there is one: a page.

        Raises:
            FencedError: the job has another driver.
        """
        ready, last = self._read(lambda tx: led.look(tx, lease, after))
        if not ready:
            return Followed(rows=0, after=last)
        return self._write(lambda tx: led.answer(tx, lease, after))

    def move_shards(self, lease: JobLease, moved: Mapping[str, str]) -> None:
        """Parts of the spool lie elsewhere from now on, the same bytes: their new URIs, by the old ones."""

        def move(tx: Tx) -> None:
            for old, new in moved.items():
                shards.move(tx, lease, old, new)

        self._write(move, long=True)

    def shards(self, job_id: str, *, open_only: bool = False) -> list[Shard]:
        """All shards of the job, split ones included, by number; or those that still have rows to run."""
        key = self._key(job_id)
        return self._read(lambda tx: shards.listing(tx, key, open_only=open_only))

    def whole_shards(self, job_id: str) -> int:
        """How many shards the job has, each split one counted as its parts."""
        key = self._key(job_id)
        return self._read(lambda tx: shards.count_whole(tx, key))

    def shard_states(self, job_id: str) -> dict[str, int]:
        """How many of the job's shards are in each state that any is in. The database counts them."""
        key = self._key(job_id)
        return self._read(lambda tx: shards.by_state(tx, key))

    def claim_shard(
        self,
        lease: JobLease,
        number: int,
        *,
        owner: str,
        replica: str | None = None,
        ttl: float = SHARD_TTL,
    ) -> ShardLease | None:
        """Take a shard for ``owner`` and open an attempt; None when it is done, split or held.

        The driver does so for itself, and tests do, for a ``replica`` too. Shard tasks call `place_shard`.
        A lapsed lease can be claimed, and so can one that ``owner`` holds itself.

        Raises:
            FencedError: the job has another driver.
        """
        return self._write(lambda tx: claims.claim(tx, lease, number, owner=owner, replica=replica, ttl=ttl))

    def place_shard(
        self, lease: JobLease, number: int, *, owner: str, ttl: float = SHARD_TTL, again: bool = False
    ) -> Claim:
        """Take a shard as :meth:`claim_shard` does, for the ready replica with the most room.

        A shard under which engines died gets a replica to itself. ``again``: it had to wait when it was asked
        for last, and most likely still has to. The store then looks before it locks anything.
        """
        if again and self._read(lambda tx: claims.must_wait(tx, lease, number)):
            return Claim(lease=None, waiting=True)
        return self._write(lambda tx: claims.place(tx, lease, number, owner=owner, ttl=ttl))

    def renew_shard(self, lease: ShardLease) -> None:
        """Extend a shard's lease by its ``ttl`` seconds from now.

        Raises:
            FencedError: the lease is lost.
        """
        self._write(lambda tx: shards.renew(tx, lease))

    def commit(self, lease: ShardLease, outcomes: Sequence[Outcome]) -> CommitReceipt:
        """Publish outcomes, durably once it returns, and extend the lease.

        Rows that have an outcome already keep it, so a commit may be repeated.

        Raises:
            FencedError: the lease is lost; drop the work, do not try again.
        """
        return self._write(lambda tx: commit.commit(tx, lease, outcomes))

    def finish_shard(self, lease: ShardLease) -> None:
        """Mark the shard done; StoreFatalError when a row of it has no outcome."""
        self._write(lambda tx: shards.finish(tx, lease))

    def release_shard(
        self,
        lease: ShardLease,
        *,
        cause: str,
        detail: str = "",
        suspect: bool = False,
        charged: Sequence[Charge] = (),
    ) -> None:
        """Give the shard back to be claimed again; its finished rows stay.

        ``cause`` and ``detail`` end the attempt. They must not quote prompts or answers. ``suspect`` says
        that an engine died under it. What is ``charged`` for it is so in the same transaction.
        """
        self._write(
            lambda tx: shards.release(tx, lease, cause=cause, detail=detail, suspect=suspect, charged=charged)
        )

    def take_back(self, lease: JobLease, number: int, *, cause: str, detail: str = "") -> None:
        """Give a shard back in the driver's name, and fence the shard task that holds it."""
        self._write(lambda tx: shards.take_back(tx, lease, number, cause=cause, detail=detail))

    def split_shard(
        self,
        lease: ShardLease,
        parts: Sequence[ShardSpec],
        *,
        cause: str,
        detail: str = "",
        suspect: bool = False,
        charged: Sequence[Charge] = (),
    ) -> list[Shard]:
        """Replace the shard by ``parts``, pending; return them. Finished rows stay.

        The caller has counted, among the rows of each part, those that have an outcome: only the lease's
        holder adds to them. ``suspect`` says that a row of it ends engines; the parts that are marked so are
        suspects then.

        Raises:
            StoreFatalError: the parts do not hold its rows, or their counts are not those of the shard.
        """
        return self._write(
            lambda tx: shards.split(
                tx, lease, parts, cause=cause, detail=detail, suspect=suspect, charged=charged
            )
        )

    def snapshot(self, lease: ShardLease) -> ShardSnapshot:
        """What is known of a shard at the end of an attempt."""
        return self._read(lambda tx: shards.snapshot(tx, lease), snapshot=True, long=False)

    def done_indexes(self, job_id: str, indexes: Iterable[int]) -> list[int]:
        """Which of ``indexes`` have an outcome, ascending. One read: ask for some thousands at most."""
        key, asked = self._key(job_id), list(indexes)
        return self._read(lambda tx: sorted(present(tx, key, asked)))
