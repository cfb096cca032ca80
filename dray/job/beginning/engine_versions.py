"""Which version of its engine answers a job's rows, as far as it can be known."""

from __future__ import annotations

from collections.abc import Iterable

from dray import __version__
from dray.job.open_job import OpenJob
from dray.machine import installed_version
from dray.store import Job, Store

VERSIONS = "engine_versions"
"""Where a job's ``info`` has the versions of all engines that it has had."""

REUSED_VERSION = "reused_version"
"""Where it has the version of those that gave the answers which it took from earlier jobs; None for none."""


def version_here(engine: str) -> str | None:
    """The version that an engine of this machine has; None where none is installed."""
    return __version__ if engine == "simulated" else installed_version(engine)


def versions_of(recorded: Job) -> frozenset[str]:
    """The versions that have answered rows of the job; empty where it ran before they were noted."""
    reused = recorded.info.get(REUSED_VERSION)
    return frozenset([*recorded.info.get(VERSIONS, ()), *([] if reused is None else [reused])])


class EngineVersions:
    """Notes the versions of a job's engines in the store, before any of them is given work."""

    def __init__(self, job: OpenJob) -> None:
        self._job = job
        self._waiting: set[str] = set()
        self._noted: frozenset[str] | None = None

    def add(self, versions: Iterable[str]) -> None:
        """Engines of these versions are ready."""
        self._waiting.update(versions)

    def note(self, store: Store) -> None:
        """Write those that are new."""
        if not self._waiting:
            return
        if self._noted is None:
            self._noted = versions_of(store.get_job(self._job.job_id))
        noted = self._noted | self._waiting
        if noted != self._noted:
            store.merge_job_info(self._job.lease, {VERSIONS: sorted(noted)})
        self._noted, self._waiting = noted, set()
