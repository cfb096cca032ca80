"""A job on replicas in threads whose engines die: the real driver, store, attempts, step loops and budgets.

Engines are simulated, and find no memory for a marked row, or for any row on a broken node. ``takes`` says
how that shows: as memory, a crash, a lost node.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from dray.cluster.base import ClusterSettings
from dray.driver.events import Event, Observer, ReplicaLost
from dray.driver.executor import TaskEnd
from dray.driver.intervals import Intervals
from dray.driver.run import Driver
from dray.driver.whole_job import Parts, engine_spec
from dray.engine.protocol import EngineSpec
from dray.errors import JobFailedError
from dray.job.beginning.opening import open_job
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.store import Counts, JobState, Shard, StoredOutcome, open_store
from tests.support.thread_executor import ThreadExecutor
from tests.support.thread_fleet import Death, Script, ThreadCluster, ThreadFleet

QUICK = Intervals(step=0.02, status=0.02, stop_signals=0.1, shards=0.05, relaunch=0.01)
"""For replicas in threads, which take milliseconds to start."""


def parts_on(fleet: ThreadFleet, observers: Sequence[Observer] = (), intervals: Intervals = QUICK) -> Parts:
    """What runs a whole job on a fleet of threads: the real driver, and shard tasks in threads, too."""
    return Parts(
        where=ClusterSettings(),
        cluster=ThreadCluster(fleet),
        executor_of=lambda _: ThreadExecutor(fleet),
        observers=observers,
        fleet_of=lambda info: fleet,
        intervals=intervals,
    )


Takes = Literal["memory", "engine", "node"]
MARK = "BOMB"


def write_marked(path: Path, rows: int, bad: Collection[int]) -> Path:
    """Chat requests of which those in ``bad`` carry the mark."""
    with path.open("w") as file:
        for number in range(rows):
            text = f"prompt {number}" + (f" {MARK}" if number in bad else "")
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
            line = {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            file.write(json.dumps(line) + "\n")
    return path


@dataclass
class Lanes:
    """A job on replicas, one for each of ``nodes``; on ``broken`` ones every engine dies.

    Those die under what has the text ``fatal``: where it is empty, under dray's own request, too.
    ``deaths`` are the names of replicas that died, in order; ``failure`` is why the job failed, if it did.
    """

    settings: JobSettings
    nodes: Sequence[str]
    takes: Takes = "engine"
    broken: frozenset[str] = frozenset()
    fatal: str = ""
    most: int = 80
    deaths: list[str] = field(default_factory=list)
    failure: str | None = None
    _stop: str | None = None

    def stop(self, why: str) -> None:
        """The run that is under way fails, for the reason ``why``; from any thread."""
        self._stop = why

    def run(self) -> Counts:
        """Run the job until no shard is open or it has failed; a call after that resumes it."""
        self.failure = self._stop = None
        job = open_job(self.settings, resume=True)
        try:
            self._drive(job, ingest_job(job, replicas=len(self.nodes)))
        except JobFailedError as error:
            self.failure = str(error)
        with open_store(self.settings.store_url, create=False) as store:
            if self.failure is None:
                store.set_job_state(job.lease, JobState.COMPLETED)
            store.release_job(job.lease)
            return store.verify_counts(job.job_id)

    def _drive(self, job: OpenJob, shards: Sequence[Shard]) -> None:
        script = Script(
            death=Death(self.takes), spec=self._spec, broken=self.broken, most=self.most, flush=0.01
        )
        fleet = ThreadFleet(self.nodes, script)
        driver = Driver(
            job,
            fleet,
            _Stoppable(fleet, self),
            [self],
            spec=engine_spec(job),
            shards=shards,
            replicas=len(self.nodes),
            intervals=QUICK,
        )
        with driver:
            driver.until_ready()
            driver.run()

    def hear(self, event: Event) -> None:
        """Of the driver."""
        if isinstance(event, ReplicaLost):
            self.deaths.append(event.name)

    def _spec(self, spec: EngineSpec, node: str) -> EngineSpec:
        if spec.name != "simulated":
            return spec
        word = self.fatal if node in self.broken else MARK
        return replace(spec, arguments={**spec.arguments, "oom_on": word})

    def outcomes(self) -> list[StoredOutcome]:
        """All rows of the job."""
        with open_store(self.settings.store_url, create=False) as store:
            assert self.settings.job_id is not None
            return [row for page in store.outcomes(self.settings.job_id) for row in page]

    def errors(self) -> dict[int, str]:
        """The codes of error rows, by index."""
        return {row.index: row.error_code for row in self.outcomes() if row.error_code}


class _Stoppable(ThreadExecutor):
    """In its next poll the job fails, once its lanes were told to stop."""

    def __init__(self, fleet: ThreadFleet, lanes: Lanes) -> None:
        super().__init__(fleet)
        self._lanes = lanes

    def poll(self, seconds: float) -> list[TaskEnd]:
        if self._lanes._stop is not None:
            raise JobFailedError(self._lanes._stop)
        return super().poll(seconds)
