"""The store's calls about jobs: their drivers, their states, what they are told, and their end."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dray.errors import JobBusyError
from dray.owner import owner_in_words
from dray.store import deletion, jobs
from dray.store.calls.base import Calls
from dray.store.database.connection import Tx
from dray.store.job_creation import create, refuse_other_content
from dray.store.option import store_option
from dray.store.records import Fingerprint, Job, JobLease, StopSignals
from dray.store.states import JobState

JOB_TTL = 60.0
"""Seconds a driver's lease lasts without renewal."""


class JobCalls(Calls):
    """Jobs."""

    def driven_job(self, lease: JobLease) -> Job:
        """The job of the lease; FencedError when another driver has it, or it was deleted."""
        return self._read(lambda tx: jobs.driven(tx, lease))

    def check_present(self, seen: Job) -> None:
        """Raise UnknownJobError where the job was deleted since it was ``seen``. For after other reads."""
        self._read(lambda tx: jobs.check_present(tx, seen))

    def list_jobs(self, limit: int = 50) -> list[Job]:
        """The newest jobs, newest first."""
        return self._read(lambda tx: jobs.latest(tx, limit))

    def numbered_jobs(self, job_id: str) -> list[Job]:
        """The job of this id, and those whose ids go on from it with a dot (``ID.2``), in no order."""
        return [self._seen(job) for job in self._read(lambda tx: jobs.numbered(tx, job_id))]

    def create_job(self, job_id: str, *, fingerprint: Fingerprint, settings: Mapping[str, Any]) -> Job:
        """A new job in state ``validating``; or the one of this id, when its fingerprint is the same.

        Raises:
            JobChangedError: the id is taken by a job with another fingerprint; names what differs.
        """
        return self._seen(self._write(lambda tx: create(tx, job_id, fingerprint, settings)))

    def claim_job(
        self,
        job_id: str,
        owner: str,
        *,
        fingerprint: Fingerprint | None = None,
        ttl: float = JOB_TTL,
        takeover: Callable[[str], bool] | None = None,
        resume: bool = False,
    ) -> JobLease:
        """Make ``owner`` the driver of the job for ``ttl`` seconds, and fence any older driver.

        All leased shards go back to pending, with their epoch raised and their attempts ended by
        DRIVER_LOST. A request to cancel is cleared. A job at rest is in progress again (or
        validating, when its ingest had not finished); a completed job stays completed, and an
        expired one whose rows all have an outcome stays expired.

        Args:
            fingerprint: the content that the owner is to run; None takes the job with the one that it has.
            takeover: asked about the last owner; true takes the job though its lease is live.
            resume: take a job, too, that was cancelled for good.

        Raises:
            UnknownJobError: no such job.
            JobChangedError: the job has another ``fingerprint`` by now; names what differs.
            JobBusyError: another owner's lease is live.
            CancelledError: it was cancelled for good, and rows are left; says when.
        """
        while True:
            seen = self.get_job(job_id)
            if fingerprint is not None:
                refuse_other_content(seen, fingerprint)
            other = seen.driver if seen.driver != owner else None
            seize = takeover is not None and other is not None and takeover(other)
            lease = self._write(
                partial(jobs.claim, seen=seen, owner=owner, ttl=ttl, seize=seize, resume=resume)
            )
            if lease is not None:
                return lease

    def renew_job(self, lease: JobLease) -> None:
        """Extend the driver's lease by its ``ttl`` seconds from now.

        Raises:
            FencedError: another driver has the job.
        """
        self._write(lambda tx: jobs.renew(tx, lease))

    def release_job(self, lease: JobLease) -> None:
        """Give the driver's lease back; do nothing when it is lost already."""
        self._write(lambda tx: jobs.release(tx, lease))

    def set_job_state(self, lease: JobLease, state: JobState, *, reason: str | None = None) -> None:
        """Move the job to ``state``, except from ``expired``, which is final; ``reason`` is for people."""
        self._write(lambda tx: jobs.set_state(tx, lease, state, reason))

    def set_job_summary(self, lease: JobLease, summary: Mapping[str, Any]) -> None:
        """Replace the job's summary (JSON)."""
        self._write(lambda tx: jobs.change(tx, lease, summary=dict(summary)))

    def set_job_settings(self, lease: JobLease, settings: Mapping[str, Any]) -> None:
        """Replace the job's settings (JSON) by those of a later run of it."""
        self._write(lambda tx: jobs.change(tx, lease, settings=dict(settings)))

    def merge_job_info(
        self, lease: JobLease, info: Mapping[str, Any], *, summary: Mapping[str, Any] | None = None
    ) -> None:
        """Set top-level keys of the job's ``info`` (JSON); other keys stay. With the summary, if given."""
        more = {} if summary is None else {"summary": dict(summary)}
        self._write(lambda tx: jobs.merge_info(tx, lease, info, **more))

    def request_cancel(self, job_id: str, *, for_good: bool = True, by: JobLease | None = None) -> None:
        """Ask the job's driver and shard holders to stop. A job that has its rows is left alone.

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
        """Put the job to rest as ``paused``, upon which its shards stop; false when it has ended already."""
        return self._write(lambda tx: jobs.pause(tx, lease, reason))

    def cancel_undriven(self, job_id: str, *, is_gone: Callable[[str], bool] | None = None) -> bool:
        """Cancel a job that no driver works on; false when one does, or the job has ended.

        ``is_gone`` says of a driver whose lease is live whether its process is surely dead.
        """
        seen = self.get_job(job_id)
        seize = is_gone is not None and seen.driver is not None and is_gone(seen.driver)
        return self._write(partial(jobs.cancel_undriven, seen=seen, seize=seize))

    def stop_signals(self, job_id: str) -> StopSignals:
        """What is to become of the job."""
        key = self._key(job_id)
        return self._read(lambda tx: jobs.stop_signals(tx, key))

    def set_expiry(self, lease: JobLease, seconds: float | None) -> None:
        """The job's time is over so many seconds after it was created; never for None."""
        self._write(lambda tx: jobs.set_expiry(tx, lease, seconds))

    def postpone(self, lease: JobLease, seconds: float) -> None:
        """The job's time is over so many seconds from now, by the clock as it is."""
        self._write(lambda tx: jobs.postpone(tx, lease, seconds))

    def ended_jobs(self, *, older_than: float) -> list[Job]:
        """Completed, failed, cancelled and expired jobs that ended so many seconds ago, oldest first."""
        return self._read(lambda tx: jobs.ended(tx, older_than))

    def buried_jobs(self) -> list[Job]:
        """Jobs whose deletion was begun and is not over, oldest first."""
        return self._read(jobs.buried)

    def bury_job(self, job_id: str, *, is_gone: Callable[[str], bool] | None = None) -> Job:
        """Begin to delete a job: hide its id, and fence its driver and its shard tasks.

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
            where = self._read(lambda tx: store_option(tx.connection.engine.url))
            driver = owner_in_words(self.get_job(job_id).driver or "a driver")
            raise JobBusyError(
                f"job {job_id!r} is being run by {driver}; stop it first, "
                f"for example with `dray cancel {job_id}{where}`"
            )
        self._keys.pop(job_id, None)
        return buried

    def remove_job(self, buried: Job, *, keep: bool = False) -> int:
        """Delete a buried job, in small transactions; how many rows went in this call. May be done again.

        ``keep`` leaves the job itself among the buried ones, for the next deletion.
        Another deletion of the same job may be at work, or have come to its end: rows go once.
        """
        rows = self._remove_rows(deletion.remove_batch, buried)
        self._remove_rows(deletion.remove_followers, buried)
        if not keep:
            self._write(lambda tx: deletion.remove_rest(tx, buried), long=True)
        return rows

    def _remove_rows(self, remove: Callable[[Tx, Job, int], tuple[int, int | None]], buried: Job) -> int:
        rows, first = 0, 0

        def next_batch(tx: Tx) -> tuple[int, int | None]:
            return remove(tx, buried, first)

        while True:
            # One answer may be of many megabytes, and PostgreSQL deletes it piece by piece.
            count, following = self._write(next_batch, long=True)
            rows += count
            if following is None:
                return rows
            first = following
