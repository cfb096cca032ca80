"""A job that this process drives, as every part of the run knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dray.job.options.settings import JobSettings
from dray.steady_clock import SteadyClock
from dray.storage.files import join
from dray.storage.folders import Owner, work_of
from dray.store import JobLease, JobState, Store, open_store, store_option
from dray.store.store import PATIENCE
from dray.weights import Manifest


@dataclass(frozen=True, kw_only=True)
class OpenJob:
    """A job that this process drives.

    ``found`` is the state that it was left in; None for a new one. ``skipped`` rows were terminal when it was
    opened, ``skipped_failed`` of them error rows. ``started`` and ``opened`` are seconds since 1970: when the
    run began by this machine's clock, and when the job was opened by the store's, which says when rows were
    committed. ``clock`` is this run's: nothing sets it. ``due`` is when its time is over by this process's
    monotonic clock, None for never. ``weights`` is the state of a model in an object store. ``identity`` is
    the job's alone, in all stores. ``older`` is the job that has answered what its query gave before.
    ``inputs`` has the states of the input's files before they were digested. ``prompt_day`` is the day
    that prompts have as today (YYYY-MM-DD).
    """

    job_id: str
    settings: JobSettings
    lease: JobLease
    resumed: bool
    skipped: int
    started: float
    opened: float
    due: float | None
    weights: Manifest | None
    identity: str
    prompt_day: str | None
    older: str | None
    inputs: Mapping[str, str]
    skipped_failed: int
    found: JobState | None
    clock: SteadyClock = field(default_factory=SteadyClock)

    @property
    def owner(self) -> Owner:
        """The name that the output folder has of the job."""
        return Owner(job_id=self.job_id, identity=self.identity)

    @property
    def work(self) -> str:
        """The folder of the job's own files."""
        return work_of(self.settings.output, self.owner)

    def spool(self, epoch: int) -> str:
        """The file in which the driver of an epoch keeps every valid request of the job."""
        return join(self.work, f"requests-{epoch}.jsonl")

    def command(self, verb: str, options: str = "") -> str:
        """``dray VERB JOB`` for a user to type, with the store as messages may name it."""
        return f"dray {verb} {self.job_id}{options}{store_option(self.settings.store_url)}"


def reopen(job: OpenJob, *, patience: float = PATIENCE) -> Store:
    """The job's store, in a process that needs its own connection; ``patience`` as in :func:`open_store`."""
    return open_store(job.settings.store_url, create=False, patience=patience)
