"""A job's shards on replicas in threads: the real store, attempts, step loops and budgets, without Ray.

What Ray and Prefect do elsewhere is done here: each lane has a replica, a dead one gets a successor, each
open shard has a thread that tries it until it is closed. Engines are simulated, and find no memory for a
marked row, or for any row on a broken node. ``takes`` says how that shows: as memory, a crash, a lost node.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dray.cluster.losses import NodeFacts
from dray.cluster.placing import shrunk
from dray.cluster.pool import SLOTS, Loss, replica_name
from dray.engine.protocol import EngineSpec
from dray.engine.replica import Replica
from dray.errors import EngineDeadError, ReplicaLostError
from dray.failures.effects import OnPrefect
from dray.job.ingesting import ingest_job, open_shards
from dray.job.ledger import JobLedger
from dray.job.opening import OpenJob, open_job
from dray.job.owner import driver_name
from dray.job.settings import JobSettings
from dray.places import lane_of
from dray.requests.model import Kind, Outcome
from dray.shard.attempt import attempt
from dray.shard.work import AttemptEnd, AttemptResult, Work
from dray.store import Counts, JobState, ReplicaRow, ReplicaState, Shard, Store, StoredOutcome, open_store

Takes = Literal["memory", "engine", "node"]
MARK = "BOMB"
_PAUSE = 0.01


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


class Mortal:
    """A replica whose death shows as ``takes`` says, once, and is final."""

    def __init__(self, name: str, node: str, spec: EngineSpec, takes: Takes) -> None:
        self.name, self.node, self.takes = name, node, takes
        self.inner = Replica(name, spec, exit_when_dead=False)
        self.seqs = self.inner.ready().max_num_seqs
        self.death: Exception | None = None

    def check(self) -> None:
        if self.death is not None:
            raise self.death
        self.inner.check()

    def feed(self, session: str, lines: list[bytes], last: bool = False) -> None:
        self.inner.feed(session, lines, last)

    def results(self, session: str, rows: int, seconds: float = 0.01) -> Iterator[list[Outcome]]:
        try:
            yield from self.inner.results(session, rows, 0.01)
        except EngineDeadError as error:
            self.death = {
                "memory": error,
                "engine": EngineDeadError("the engine died"),
                "node": ReplicaLostError("the replica was lost"),
            }[self.takes]
            raise self.death from None

    def abort(self, session: str) -> None:
        self.inner.abort(session)


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

    def run(self) -> Counts:
        """Run the job until no shard is open or it has failed; a call after that resumes it."""
        self.failure = None
        self._live: dict[str, Mortal] = {}
        self._current: dict[int, Mortal] = {}
        self._over = threading.Event()
        self._guard = threading.Lock()
        job = open_job(self.settings, resume=True)
        shards = ingest_job(job, replicas=len(self.nodes))
        self._begun = [0] * len(self.nodes)
        self._at = list(self.nodes)
        with open_store(self.settings.store_url, create=False) as store, ThreadPoolExecutor(64) as threads:
            self._drive(job, store, threads, shards)
        for replica in self._live.values():
            replica.inner.stop()
        with open_store(self.settings.store_url, create=False) as store:
            if self.failure is None:
                store.set_job_state(job.lease, JobState.COMPLETED)
            store.release_job(job.lease)
            return store.verify_counts(job.job_id)

    def outcomes(self) -> list[StoredOutcome]:
        """All rows of the job."""
        with open_store(self.settings.store_url, create=False) as store:
            assert self.settings.job_id is not None
            return [row for page in store.outcomes(self.settings.job_id) for row in page]

    def errors(self) -> dict[int, str]:
        """The codes of error rows, by index."""
        return {row.index: row.error_code for row in self.outcomes() if row.error_code}

    # -- the driver -------------------------------------------------------------------------

    def _drive(
        self, job: OpenJob, store: Store, threads: ThreadPoolExecutor, shards: Sequence[Shard]
    ) -> None:
        running: dict[int, Any] = {}
        try:
            while not self._over.is_set() and (shards or running):
                self._replace(job, store)
                for shard in shards:
                    if shard.number not in running:
                        running[shard.number] = threads.submit(self._work, job, shard)
                time.sleep(_PAUSE)
                for number in [number for number, future in running.items() if future.done()]:
                    running.pop(number).result()
                shards = open_shards(store.shards(job.job_id))
        finally:
            self._over.set()
            if self.failure is not None:  # those that wait for a place, or run, end with it
                store.set_job_state(job.lease, JobState.FAILED, reason=self.failure)

    def _replace(self, job: OpenJob, store: Store) -> None:
        """A successor for each dead replica, as the pool makes it: smaller, or elsewhere, when it must be."""
        ledger = JobLedger(job)
        for lane in range(len(self.nodes)):
            now = self._current.get(lane)
            if now is not None and now.death is None:
                continue
            if now is not None:
                self._bury(ledger, now)
                if ledger.failure is not None:
                    return self._fail(str(ledger.failure))
            name = replica_name("job/1", lane, self._begun[lane])
            excluded = ledger.excluded(lane_of(name))
            if self._at[lane] in excluded:
                self._at[lane] = next((node for node in self.nodes if node not in excluded), self._at[lane])
            if self.takes == "node" and self._at[lane] not in self.broken:
                self._at[lane] = f"{self.nodes[lane]}.{self._begun[lane]}"  # a new one came for the lost one
            self._begun[lane] += 1
            node = self._at[lane]
            takes: Takes = "engine" if node in self.broken else self.takes
            spec = self._spec(node, ledger.shrink_steps())
            self._current[lane] = self._live[name] = made = Mortal(name, node, spec, takes)
            row = ReplicaRow(
                name=name,
                lane=lane,
                state=ReplicaState.READY,
                slots=SLOTS,
                node=made.node,
                host=made.node,
                max_num_seqs=made.seqs,
            )
            store.put_replicas(job.lease, [row])
        return None

    def _spec(self, node: str, steps: int) -> EngineSpec:
        word = self.fatal if node in self.broken else MARK
        arguments = dict(self.settings.engine_arguments)
        if self.settings.engine == "simulated":
            arguments["oom_on"] = word
        spec = EngineSpec(
            name=self.settings.engine, model=self.settings.model, kind=Kind.CHAT, arguments=arguments
        )
        return shrunk(spec, steps, 0)

    def _bury(self, ledger: JobLedger, dead: Mortal) -> None:
        assert dead.death is not None
        self.deaths.append(dead.name)
        assert len(self.deaths) <= self.most, f"too many engines died: {self.deaths}"
        dead.inner.stop()
        ledger.lost(Loss(name=dead.name, node=dead.node, error=dead.death, facts=self.facts(dead, dead.node)))

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._over.set()

    # -- a shard's task ---------------------------------------------------------------------

    def _work(self, job: OpenJob, shard: Shard) -> None:
        with open_store(self.settings.store_url, create=False) as store:
            owner = f"{driver_name()}/{shard.number}"
            work = Work(store=store, job=job.lease, shard=shard, replicas=self, owner=owner)
            while not self._over.is_set():
                ended = attempt(work)
                if self._is_over(ended):
                    return

    def _is_over(self, ended: AttemptResult) -> bool:
        if ended.how is not AttemptEnd.INTERRUPTED:
            return True
        assert ended.decision is not None
        if ended.decision.effect.prefect is OnPrefect.FAIL:
            self._fail(ended.decision.reason)
        return ended.decision.effect.prefect is not OnPrefect.RETRY

    def find(self, name: str) -> Mortal:
        """The replica of this name."""
        return self._live[name]

    def facts(self, client: Any, node: str | None) -> NodeFacts:
        """What became of it: it took its node along, or not."""
        return NodeFacts(alive=client.takes != "node", draining=False, preempted=False, oom=False)
