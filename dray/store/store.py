"""The store's public face: each method is one transaction, or a loop over few."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from dray.errors import (
    JobBusyError,
    StoreFatalError,
    StoreTransientError,
    StoreUnreachableError,
)
from dray.requests.model import Outcome
from dray.store import attempts, charges, commit, counting, deletion, jobs, reading, routing, shards
from dray.store.clock import Clock, DatabaseClock
from dray.store.connection import Database, Tx, most_connections
from dray.store.migrate import ensure_schema
from dray.store.presence import present
from dray.store.records import (
    Attempt,
    Charge,
    Claim,
    CommitReceipt,
    Counts,
    Fingerprint,
    Job,
    JobLease,
    JobState,
    Notice,
    Progress,
    ReplicaRow,
    Shard,
    ShardLease,
    ShardSnapshot,
    ShardSpec,
    StopSignals,
    StoredOutcome,
)
from dray.store.sqlite_file import PLAIN_USE, SqliteUse
from dray.store.urls import parse_url

if TYPE_CHECKING:
    import pandas as pd

JOB_TTL = 60.0
"""Seconds a driver's lease lasts without renewal."""
SHARD_TTL = 90.0
"""Seconds a shard's lease lasts; more than the about 65 s that Ray takes to notice a hung node."""
PATIENCE = 20.0
"""Seconds for which a transaction is tried again after transient errors."""


def open_store(
    url: str, *, clock: Clock | None = None, create: bool = True, patience: float = PATIENCE
) -> Store:
    """Opens a store, creating or upgrading its tables unless ``create`` is false.

    Args:
        url: ``sqlite:///path``, a path ending in ``.db``, ``.sqlite`` or ``.sqlite3``, or
            ``postgresql://...``. Workers open a store by its URL themselves.
        clock: where leases take the time from; the database's own clock when None.
        create: whether to create what is missing.
        patience: seconds for which later transactions are tried again after transient errors.

    Raises:
        ConfigError: not a store's URL, its driver is not installed, or a SQLite file that is to be made on
            a network's file system. With ``create`` false it is opened to be read.
        StoreUnreachableError: no connection could be made, or nothing there and ``create`` is false.
        StoreFatalError: the schema is newer than this code, or the database is unusable.
    """
    parsed = parse_url(url)
    use = PLAIN_USE
    if parsed.get_backend_name() == "sqlite":
        use = SqliteUse.of(Path(parsed.database or ""), create=create)
        _prepare_file(Path(parsed.database or ""), create=create)
    database = Database(parsed, clock=clock or DatabaseClock(), patience=patience, sqlite_use=use)
    try:
        ensure_schema(database, create=create)
    except StoreTransientError as error:
        database.close()
        unreachable = StoreUnreachableError(f"{error}; is the server up, and the URL right?")
        unreachable.address = error.address
        raise unreachable from error
    return Store(database)


def _prepare_file(path: Path, *, create: bool) -> None:
    if path.exists():
        return
    if not create:
        raise StoreUnreachableError(f"store {path}: no such file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnreachableError(f"store {path}: its folder cannot be made: {error.strerror}") from error


class Store:
    """Jobs, shards and results in one database. Safe to share between threads.

    Every method may raise StoreTransientError (after ``patience`` seconds of trying) and
    StoreFatalError. Methods given a lease raise FencedError once another holder has it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._read = database.read
        self._write = database.write
        self._keys: dict[str, int] = {}

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @property
    def url(self) -> str:
        """Where the store is, with the password masked: for messages only."""
        return self._database.url

    def close(self) -> None:
        """Closes the connections. Leases stay as they are."""
        self._database.close()

    def now(self) -> float:
        """The time by the store's clock, in seconds since 1970."""
        return float(self._read(lambda tx: tx.execute(select(tx.now)).scalar_one()))

    # Jobs

    def find_job(self, job_id: str) -> Job | None:
        """The job, or None when the store has none of this id."""
        found = self._read(lambda tx: jobs.find(tx, job_id))
        return None if found is None else self._seen(found)

    def get_job(self, job_id: str) -> Job:
        """The job; UnknownJobError when the store has none of this id."""
        return self._seen(self._read(lambda tx: jobs.get(tx, job_id, self._database.name)))

    def driven_job(self, lease: JobLease) -> Job:
        """The job of the lease; FencedError when another driver has it, or it was deleted."""
        return self._read(lambda tx: jobs.driven(tx, lease))

    def list_jobs(self, limit: int = 50) -> list[Job]:
        """The newest jobs, newest first."""
        return self._read(lambda tx: jobs.latest(tx, limit))

    def create_job(self, job_id: str, *, fingerprint: Fingerprint, settings: Mapping[str, Any]) -> Job:
        """A new job in state ``validating``; or the one of this id, when its fingerprint is the same.

        Raises:
            JobChangedError: the id is taken by a job with another fingerprint; names what differs.
        """
        return self._seen(self._write(lambda tx: jobs.create(tx, job_id, fingerprint, settings)))

    def claim_job(
        self,
        job_id: str,
        owner: str,
        *,
        ttl: float = JOB_TTL,
        takeover: Callable[[str], bool] | None = None,
        resume: bool = False,
    ) -> JobLease:
        """Makes ``owner`` the driver of the job for ``ttl`` seconds, and fences any older driver.

        All leased shards go back to pending, with their epoch raised and their attempts ended by
        DRIVER_LOST. A request to cancel is cleared. A job at rest is in progress again (or
        validating, when its ingest had not finished); a completed job stays completed, and an
        expired one whose rows all have an outcome stays expired.

        Args:
            takeover: asked about the last owner; true takes the job though its lease is live.
            resume: take a job, too, that was cancelled for good.

        Raises:
            UnknownJobError: no such job.
            JobBusyError: another owner's lease is live.
            CancelledError: it was cancelled for good, and rows are left; says when.
        """
        while True:
            seen = self.get_job(job_id)
            other = seen.driver if seen.driver != owner else None
            seize = takeover is not None and other is not None and takeover(other)
            lease = self._write(
                partial(jobs.claim, seen=seen, owner=owner, ttl=ttl, seize=seize, resume=resume)
            )
            if lease is not None:
                return lease

    def renew_job(self, lease: JobLease, ttl: float | None = None) -> JobLease:
        """Extends the driver's lease by ``ttl`` seconds from now (as claimed, when None)."""
        seconds = lease.ttl if ttl is None else ttl
        until = self._write(lambda tx: jobs.renew(tx, lease, seconds))
        return replace(lease, ttl=seconds, until=until)

    def release_job(self, lease: JobLease) -> None:
        """Gives the driver's lease back; does nothing when it is lost already."""
        self._write(lambda tx: jobs.release(tx, lease))

    def set_job_state(self, lease: JobLease, state: JobState, *, reason: str | None = None) -> None:
        """Moves the job to ``state``; ``reason`` is for people."""
        self._write(lambda tx: jobs.change(tx, lease, state=state.value, reason=reason))

    def set_job_summary(self, lease: JobLease, summary: Mapping[str, Any]) -> None:
        """Replaces the job's summary (JSON)."""
        self._write(lambda tx: jobs.change(tx, lease, summary=dict(summary)))

    def merge_job_info(
        self, lease: JobLease, info: Mapping[str, Any], *, summary: Mapping[str, Any] | None = None
    ) -> None:
        """Sets top-level keys of the job's ``info`` (JSON); other keys stay. With the summary, if given."""
        more = {} if summary is None else {"summary": dict(summary)}
        self._write(lambda tx: jobs.merge_info(tx, lease, info, **more))

    def request_cancel(self, job_id: str, *, for_good: bool = True, by: JobLease | None = None) -> None:
        """Asks the job's driver and shard holders to stop. A job that has its rows is left alone.

        ``for_good``: the job goes on only when a driver claims it with ``resume`` (:meth:`claim_job`).
        Otherwise the next driver that claims it goes on, as after a signal to one run of it. ``by`` is the
        lease of the run that is meant: FencedError once another driver has taken the job.
        """
        if self._write(lambda tx: jobs.request_cancel(tx, job_id, for_good=for_good, by=by)):
            return
        if by is not None:
            raise jobs.superseded(by)
        self.get_job(job_id)

    def pause_job(self, lease: JobLease, *, reason: str) -> bool:
        """Puts the job to rest as ``paused``, upon which its shards stop; false when it has ended already."""
        return self._write(lambda tx: jobs.pause(tx, lease, reason))

    def cancel_undriven(self, job_id: str, *, is_gone: Callable[[str], bool] | None = None) -> bool:
        """Cancels a job that no driver works on; false when one does, or the job has ended.

        ``is_gone`` says of a driver whose lease is live whether its process is surely dead.
        """
        seen = self.get_job(job_id)
        seize = is_gone is not None and seen.driver is not None and is_gone(seen.driver)
        return self._write(partial(jobs.cancel_undriven, seen=seen, seize=seize))

    def cancel_requested(self, job_id: str) -> bool:
        """Whether a user or a driver asked to cancel the job since a driver last claimed it."""
        return self.get_job(job_id).cancel_requested

    def orders(self, job_id: str) -> StopSignals:
        """What is to become of the job."""
        key = self._key(job_id)
        return self._read(lambda tx: jobs.orders(tx, key))

    def set_expiry(self, lease: JobLease, seconds: float | None) -> None:
        """The job's time is over so many seconds after it was created; never for None."""
        self._write(lambda tx: jobs.set_expiry(tx, lease, seconds))

    def postpone(self, lease: JobLease, seconds: float) -> None:
        """The job's time is over so many seconds from now, by the clock as it is."""
        self._write(lambda tx: jobs.postpone(tx, lease, seconds))

    # Deletion

    def ended_jobs(self, *, older_than: float) -> list[Job]:
        """Completed, failed, cancelled and expired jobs that ended so many seconds ago, oldest first."""
        return self._read(lambda tx: jobs.ended(tx, older_than))

    def buried_jobs(self) -> list[Job]:
        """Jobs whose deletion was begun and is not over, oldest first."""
        return self._read(jobs.buried)

    def bury_job(self, job_id: str, *, is_gone: Callable[[str], bool] | None = None) -> Job:
        """Begins to delete a job. No process finds its name any more; its driver and shard tasks are fenced.

        :meth:`remove_job` then does the rest. ``is_gone`` says of a driver whose lease is live whether its
        process is surely dead.

        Raises:
            UnknownJobError: no such job.
            JobBusyError: a driver's lease is live.
        """
        seen = self.get_job(job_id)
        seize = is_gone is not None and seen.driver is not None and is_gone(seen.driver)
        burial = uuid.uuid4().hex
        buried = self._write(lambda tx: deletion.bury(tx, seen, burial, seize=seize))
        if buried is None:
            raise JobBusyError(
                f"job {job_id!r} is being run by {self.get_job(job_id).driver}; stop it first, "
                f"for example with `dray cancel {job_id}`"
            )
        self._keys.pop(job_id, None)
        return buried

    def remove_job(self, buried: Job) -> int:
        """Deletes a buried job, in small transactions; how many rows went in this call. May be done again.

        Another deletion of the same job may be at work, or have come to its end: rows go once.
        """
        rows = 0
        while count := self._write(lambda tx: deletion.remove_batch(tx, buried)):
            rows += count
        self._write(lambda tx: deletion.remove_rest(tx, buried))
        return rows

    # Shards

    def add_shards(
        self,
        lease: JobLease,
        specs: Sequence[ShardSpec],
        *,
        total_rows: int,
        rejects: Iterable[Sequence[Outcome]] = (),
    ) -> None:
        """Ends ingest: publishes all shards, the job's total and state ``in_progress`` at once.

        ``rejects`` are the error outcomes of rows that entered no shard, in batches; they are stored first, a
        transaction each, and count only once the shards are there. So the call can be repeated after a crash
        at any point, with other rows too.
        """
        self._write(lambda tx: commit.forget_rejects(tx, lease), long=True)
        for batch in rejects:
            self._write(partial(commit.reject, lease=lease, outcomes=batch))
        self._write(lambda tx: shards.publish(tx, lease, specs, total_rows=total_rows))

    def move_shards(self, lease: JobLease, uri: str) -> None:
        """The spool of all shards lies at ``uri`` from now on, the same bytes."""
        self._write(lambda tx: shards.move(tx, lease, uri))

    def shards(self, job_id: str) -> list[Shard]:
        """All shards of the job, split ones included, by number."""
        key = self._key(job_id)
        return self._read(lambda tx: shards.listing(tx, key))

    def claim_shard(
        self,
        lease: JobLease,
        number: int,
        *,
        owner: str,
        replica: str | None = None,
        ttl: float = SHARD_TTL,
    ) -> ShardLease | None:
        """Takes a shard for ``owner`` and opens an attempt; None when it is done, split or held.

        A lapsed lease can be claimed, and so can one that ``owner`` holds itself.
        Raises FencedError when the job has another driver.
        """
        return self._write(lambda tx: shards.claim(tx, lease, number, owner=owner, replica=replica, ttl=ttl))

    def place_shard(self, lease: JobLease, number: int, *, owner: str, ttl: float = SHARD_TTL) -> Claim:
        """Takes a shard as :meth:`claim_shard` does, for the ready replica with the most room.

        A shard under which engines died gets a replica to itself.
        """
        return self._write(lambda tx: shards.place(tx, lease, number, owner=owner, ttl=ttl))

    def renew_shard(self, lease: ShardLease, ttl: float | None = None) -> ShardLease:
        """Extends a shard's lease by ``ttl`` seconds from now (as claimed, when None)."""
        seconds = lease.ttl if ttl is None else ttl
        until = self._write(lambda tx: shards.renew(tx, lease, seconds))
        return replace(lease, ttl=seconds, until=until)

    def commit(self, lease: ShardLease, outcomes: Sequence[Outcome]) -> CommitReceipt:
        """Publishes outcomes, durably once it returns, and extends the lease.

        Rows that have an outcome already keep it, so a commit may be repeated.
        Raises FencedError when the lease is lost: drop the work, do not try again.
        """
        return self._write(lambda tx: commit.commit(tx, lease, outcomes))

    def finish_shard(self, lease: ShardLease) -> None:
        """Marks the shard done; StoreFatalError when a row of it has no outcome."""
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
        """Gives the shard back to be claimed again; its finished rows stay.

        ``cause`` and ``detail`` end the attempt. They must not quote prompts or answers. ``suspect`` says
        that an engine died under it. What is ``charged`` for it is so in the same transaction.
        """
        self._write(
            lambda tx: shards.release(tx, lease, cause=cause, detail=detail, suspect=suspect, charged=charged)
        )

    def take_back(self, lease: JobLease, number: int, *, cause: str, detail: str = "") -> None:
        """Gives a shard back in the driver's name, and fences the shard task that holds it."""
        self._write(lambda tx: shards.take_back(tx, lease, number, cause=cause, detail=detail))

    def split_shard(
        self,
        lease: ShardLease,
        parts: Sequence[ShardSpec],
        *,
        cause: str = "SPLIT",
        detail: str = "",
        suspect: bool = False,
        charged: Sequence[Charge] = (),
    ) -> list[Shard]:
        """Replaces the shard by ``parts``, pending; returns them. Finished rows stay.

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

    def standing(self, lease: ShardLease, node: str | None = None) -> ShardSnapshot:
        """What is known of a shard at the end of an attempt; ``node`` is its replica's, where known."""
        return self._read(lambda tx: shards.standing(tx, lease, node), snapshot=True, long=False)

    def done_indexes(self, job_id: str, indexes: Iterable[int]) -> list[int]:
        """Those of ``indexes`` that have an outcome, ascending. One read: ask for some thousands at most."""
        key, asked = self._key(job_id), list(indexes)
        return self._read(lambda tx: sorted(present(tx, key, asked)))

    # Records of what happened

    def note_attempt(
        self,
        lease: ShardLease,
        *,
        node: str | None = None,
        replica: str | None = None,
    ) -> None:
        """Adds what became known about the attempt behind ``lease``; None leaves a field as it is."""
        known = {"node": node, "replica": replica}
        values = {name: value for name, value in known.items() if value is not None}
        if values:
            self._write(
                lambda tx: attempts.change_attempt(tx, lease.key, lease.number, lease.epoch, **values)
            )

    def attempts(self, job_id: str) -> list[Attempt]:
        """All attempts at the job's shards, oldest first."""
        key = self._key(job_id)
        return self._read(lambda tx: attempts.list_attempts(tx, key))

    def causes(self, job_id: str) -> dict[str, int]:
        """How many attempts ended by each cause. What budgets were charged is in :meth:`charges`."""
        key = self._key(job_id)
        return self._read(lambda tx: attempts.count_causes(tx, key))

    def record_notice(self, job_id: str, notice: Notice) -> None:
        """Notes an interruption notice, seen now; one that is known changes nothing."""
        key = self._key(job_id)
        self._write(lambda tx: attempts.add_notice(tx, key, notice))

    def notices(self, job_id: str) -> list[Notice]:
        """The job's interruption notices, oldest first."""
        key = self._key(job_id)
        return self._read(lambda tx: attempts.list_notices(tx, key))

    # Replicas and budgets

    def most_connections(self) -> int | None:
        """Connections that the database allows in all; None for SQLite, which counts none."""
        return self._read(most_connections)

    def put_replicas(self, lease: JobLease, rows: Sequence[ReplicaRow]) -> None:
        """Says where these replicas stand, so that shards find them."""

        def put(tx: Tx) -> None:
            jobs.check_driver(tx, lease)
            routing.put(tx, lease.key, rows)

        self._write(put)

    def replica_gone(self, job_id: str, name: str) -> None:
        """A replica does not answer: no more shards go there, unless the driver says otherwise."""
        key = self._key(job_id)
        self._write(lambda tx: routing.gone(tx, key, name))

    def replicas(self, job_id: str) -> list[ReplicaRow]:
        """The replicas of the job's present driver, by lane."""
        key = self._key(job_id)
        return self._read(lambda tx: routing.listing(tx, key))

    def charge(self, job_id: str, charged: Sequence[Charge]) -> None:
        """Charges losses; an event counts once, for the cause that was charged first."""
        key = self._key(job_id)
        self._write(lambda tx: charges.charge(tx, key, charged))

    def charged_cause(self, job_id: str, event: str) -> str | None:
        """The cause for which an event was charged; None where it was not."""
        key = self._key(job_id)
        return self._read(lambda tx: charges.cause_of(tx, key, event))

    def spent(
        self, job_id: str, budget: str, *, scope: str = "", within: float | None = None, besides: str = ""
    ) -> int:
        """How much was charged to a budget, without the event ``besides``.

        ``within`` is the last part of the work to count, as a share of the job's rows: 0 since the last row
        was answered, None for all.
        """
        key = self._key(job_id)
        return self._read(lambda tx: charges.spent(tx, key, budget, scope, within=within, besides=besides))

    def losses(self, job_id: str, cause: str, *, besides: str = "") -> int:
        """How many losses, other than ``besides``, were charged for a cause, to whatever budget."""
        key = self._key(job_id)
        return self._read(lambda tx: charges.losses(tx, key, cause, besides=besides))

    def overspent(self, job_id: str, budget: str, *, above: int, within: float | None = None) -> list[str]:
        """The scopes (nodes) of a budget that were charged more than ``above`` times."""
        key = self._key(job_id)
        return self._read(lambda tx: charges.scopes(tx, key, budget, above=above, within=within))

    def charges(self, job_id: str) -> list[Charge]:
        """All that was charged, oldest first."""
        key = self._key(job_id)
        return self._read(lambda tx: charges.listing(tx, key))

    # Reading

    def counts(self, job_id: str) -> Counts:
        """Rows by outcome, from the shards' counters. All 0 until ingest has finished."""
        return self.progress(job_id).counts

    def progress(self, job_id: str) -> Progress:
        """Counts and tokens, from the shards' counters."""
        key = self._key(job_id)
        return self._read(lambda tx: reading.progress(tx, key), snapshot=True, long=False)

    def verify_counts(self, job_id: str) -> Counts:
        """Counts the rows themselves, and proves that each custom_id stands once. O(rows): for the end.

        In transactions of 5000 rows: writers are not held up.

        Raises:
            StoreFatalError: the shards' counters say otherwise, or a custom_id stands twice.
        """
        key = self._key(job_id)
        counted, kept = counting.recount(self._read, lambda: self.counts(job_id), key, self._database.name)
        if counted != kept:
            raise StoreFatalError(f"job {job_id!r}: its rows give {counted}, its counters {kept}")
        return counted

    def outcomes(self, job_id: str, *, after: int = -1, batch: int = 2000) -> Iterator[list[StoredOutcome]]:
        """All outcomes with an index above ``after``, in order, ``batch`` at a time.

        A transaction per page: memory stays constant, and writers are not held up.

        Raises:
            UnknownJobError: no such job, or it was deleted meanwhile: what was read is not all of it.
        """
        seen = self.get_job(job_id)

        def next_page(tx: Tx) -> list[StoredOutcome]:
            found = reading.page(tx, seen.key, after, batch)
            jobs.check_present(tx, seen)
            return found

        while page := self._read(next_page):
            yield page
            after = page[-1].index

    def to_dataframe(self, job_id: str) -> pd.DataFrame:
        """All outcomes as a DataFrame with the columns of :class:`StoredOutcome`; responses as text."""
        import pandas as pd

        pages = [pd.DataFrame(page, columns=list(StoredOutcome._fields)) for page in self.outcomes(job_id)]
        frame = (
            pd.concat(pages, ignore_index=True)
            if pages
            else pd.DataFrame(columns=list(StoredOutcome._fields))
        )
        return frame.assign(response=frame["response"].map(bytes.decode, na_action="ignore"))

    def _key(self, job_id: str) -> int:
        """The job's integer key, as it was when the job was last read."""
        known = self._keys.get(job_id)
        return self.get_job(job_id).key if known is None else known

    def _seen(self, job: Job) -> Job:
        """Note the key: another process may have deleted an older job of this name."""
        self._keys[job.job_id] = job.key
        return job
