"""What all calls of the store share: its database, and the keys of jobs by their names."""

from __future__ import annotations

from pathlib import Path

from dray.storage.moved_folder import moved_along
from dray.store import jobs
from dray.store.database.connection import Database
from dray.store.records import Job


class Calls:
    """A part of the store's public face. Each call is one transaction, or a loop over few."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._read = database.read
        self._write = database.write
        self._keys: dict[str, int] = {}

    def find_job(self, job_id: str) -> Job | None:
        """The job, or None when the store has none of this id."""
        found = self._read(lambda tx: jobs.find(tx, job_id))
        return None if found is None else self._seen(found)

    def get_job(self, job_id: str) -> Job:
        """The job; UnknownJobError when the store has none of this id."""
        return self._seen(self._read(lambda tx: jobs.get(tx, job_id, self._database.name)))

    def now_at(self, uri: str) -> str:
        """Where a job's own file lies by now: the user may have moved the folder of this SQLite file."""
        url = self._database.engine.url
        if url.get_backend_name() != "sqlite" or not url.database:
            return uri
        return moved_along(uri, str(Path(url.database).parent))

    def _key(self, job_id: str) -> int:
        """The job's integer key, as it was when the job was last read."""
        known = self._keys.get(job_id)
        return self.get_job(job_id).key if known is None else known

    def _seen(self, job: Job) -> Job:
        """Note the key: another process may have deleted an older job of this name."""
        self._keys[job.job_id] = job.key
        return job
