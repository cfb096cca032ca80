"""What the driver passes on of its pool: events to the observers, and rows to the store."""

from __future__ import annotations

from collections.abc import Callable

from dray.driver.events import Event, ReplicaChanged, ReplicaLogged, ReplicaLooked, ReplicaReady
from dray.driver.replicas.pool import ReplicaPool
from dray.errors import DrayError
from dray.job.beginning.engine_versions import EngineVersions
from dray.job.open_job import OpenJob
from dray.store import Store


class PoolNews:
    """Tells what became of a job's replicas since it last did."""

    def __init__(self, job: OpenJob, pool: ReplicaPool, emit: Callable[[Event], None]) -> None:
        self._lease = job.lease
        self._pool = pool
        self._emit = emit
        self._versions = EngineVersions(job)

    def look(self) -> None:
        """Look at the replicas, and tell how they are, what they logged, and which are ready.

        Raises:
            EngineStartError, ConfigError: no engine of the job has ever started, and none will.
        """
        for status in self._pool.look():
            self._emit(ReplicaLooked(status=status))
            for severity, logger, message in status.log:
                record = ReplicaLogged(name=status.name, severity=severity, logger=logger, message=message)
                self._emit(record)
        for start in self._pool.take_ready():
            self._versions.add([start.info.version])
            self._emit(ReplicaReady(start=start))

    def publish(self, store: Store) -> None:
        """Tell the store, and so shard tasks, of each replica that changed.

        Raises:
            StoreError: the next call tells it again.
        """
        self._versions.note(store)  # before any of them is found by shards
        changed = self._pool.take_changed()
        if not changed:
            return
        for one in changed:
            self._emit(ReplicaChanged.of(one, self._pool.ask.gpus))
        try:
            store.put_replicas(self._lease, [one.row for one in changed])
        except DrayError:
            self._pool.put_back(changed)
            raise

    def say_last(self, seconds: float) -> None:
        """Tell what the replicas say within ``seconds``, at the end of the job."""
        for status in self._pool.last_words(seconds):
            self._emit(ReplicaLooked(status=status))
