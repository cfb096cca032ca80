"""Which version of its engine answers a job's rows, as far as it can be known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from dray import __version__
from dray.job.opening import OpenJob
from dray.store import Job, Store

VERSIONS = "engine_versions"
"""Where a job's ``info`` has the versions of all engines that it has had."""

_VERSION = re.compile(r"""^__version__ = version = ['"]([^'"]+)['"]""", re.MULTILINE)


def installed_version(engine: str) -> str | None:
    """The version that an engine of this machine has; None where none is installed. Imports nothing."""
    if engine == "simulated":
        return __version__
    found = find_spec(engine)
    if found is None or found.origin is None:
        return None
    try:
        said = _VERSION.search((Path(found.origin).parent / "_version.py").read_text())
    except OSError:
        return None
    return said[1] if said else None


def versions_of(recorded: Job) -> frozenset[str]:
    """The versions that have answered rows of the job; empty where it ran before they were noted."""
    return frozenset(recorded.info.get(VERSIONS, ()))


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
