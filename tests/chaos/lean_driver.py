"""A whole job in one process, without Prefect and Ray: ``python -m tests.chaos.lean_driver SETTINGS.json``.

The code of every point in ``dray/triggers.py`` runs as it is: opening, ingest, attempts at shards on two
simulated replicas, splits, outputs. Only who calls it is this file, so that a run takes a second and not half
a minute. One replica is lost in each run, one request kills every engine that it is in, one gets an error
row, and some are refused at ingest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path

from dray.cluster.losses import NodeFacts
from dray.engine.client import ReplicaClient
from dray.engine.protocol import EngineSpec
from dray.engine.replica import FLUSH_SECONDS, Replica
from dray.errors import EngineDeadError, EngineError, JobFailedError, ReplicaLostError
from dray.failures.effects import OnPrefect
from dray.job import opening
from dray.job.finalising import finalise_job
from dray.job.ingesting import engine_kind, ingest_job, open_shards
from dray.job.job_lease import job_lease_kept
from dray.job.opening import OpenJob, open_job
from dray.job.owner import driver_name
from dray.job.settings import JobSettings
from dray.job.timeline import Timeline
from dray.requests import Outcome, RowDefaults, source_of
from dray.shard import placing, pump
from dray.shard.attempt import attempt
from dray.shard.work import AttemptEnd, AttemptResult, Work
from dray.store import ReplicaRow, ReplicaState, Shard, Store, open_store

JOB = "job"
SHARD_ROWS = 40
MAX_NUM_SEQS = 8
LANES = 2
LOST_AT_BATCH = 1  # of the first replica of all: its second micro-batch never comes
POISON = "kills engines"
REFUSED = "is refused"


def settings_of(path: Path) -> JobSettings:
    """The job that a file describes: ``input``, ``output`` and ``store_url``.

    The file may also say how it is run: ``lanes``, and the seconds of the driver's lease, ``driver_ttl``.
    """
    given = json.loads(path.read_text())
    return JobSettings(
        source=source_of([given["input"]]),
        defaults=RowDefaults(sampling={"temperature": 0}),
        model="simulated",
        output=given["output"],
        store_url=given["store_url"],
        engine="simulated",
        engine_arguments={"max_num_seqs": MAX_NUM_SEQS, "oom_on": POISON, "error_on": REFUSED},
        job_id=JOB,
        skip_invalid=True,
        shard_rows=SHARD_ROWS,
    )


class Member:
    """A replica in this process, as another process would see it: it can be lost."""

    def __init__(self, number: int, spec: EngineSpec, *, lost_at: int | None) -> None:
        self.name = f"{JOB}/replica-{number}"
        self.node = f"node-{number}"
        self.lost = False
        self._lost_at = lost_at
        self._replica = Replica(self.name, spec, exit_when_dead=False)
        self._replica.ready()

    def check(self) -> None:
        if self.lost:
            raise ReplicaLostError("lost")
        self._replica.check()

    def feed(self, session: str, lines: list[bytes], last: bool = False) -> None:
        self._replica.feed(session, lines, last)

    def results(self, session: str, rows: int, seconds: float = FLUSH_SECONDS) -> Iterator[list[Outcome]]:
        try:
            for count, batch in enumerate(self._replica.results(session, rows, seconds)):
                if count == self._lost_at:
                    self.lost = True
                    self.stop()
                    raise ReplicaLostError("lost")
                yield batch
        except EngineDeadError:
            if self.lost:
                raise ReplicaLostError("lost") from None
            # The one way of the simulated engine to die alone is that of memory, which is another cause.
            raise EngineDeadError("dead") from None

    def abort(self, session: str) -> None:
        self._replica.abort(session)

    def stop(self) -> None:
        self._replica.stop()


class Pool:
    """A replica for each lane, published in the store; one that is gone is replaced."""

    def __init__(self, store: Store, job: OpenJob, lanes: int) -> None:
        self._store = store
        self._job = job
        kind, model_name = engine_kind(store, job)
        self._spec = EngineSpec(
            name="simulated",
            model="simulated",
            kind=kind,
            model_name=model_name,
            arguments=dict(job.settings.engine_arguments),
        )
        self._members: list[Member] = []
        self._lanes: list[Member | None] = [None] * lanes

    def mend(self) -> None:
        """Fill the lanes that have no live replica."""
        for lane, member in enumerate(self._lanes):
            if member is not None and _lives(member):
                continue
            lost_at = None if self._members else LOST_AT_BATCH
            new = Member(len(self._members), self._spec, lost_at=lost_at)
            self._members.append(new)
            self._lanes[lane] = new
            row = ReplicaRow(
                name=new.name,
                lane=lane,
                state=ReplicaState.READY,
                slots=2,
                node=new.node,
                host=new.node,
                max_num_seqs=MAX_NUM_SEQS,
            )
            self._store.put_replicas(self._job.lease, [row])

    def find(self, name: str) -> ReplicaClient:
        """The replica of this name."""
        [found] = [member for member in self._members if member.name == name]
        return found

    def facts(self, client: ReplicaClient, node: str | None) -> NodeFacts:
        """A lost one went with its node."""
        assert isinstance(client, Member)
        return NodeFacts(alive=not client.lost, draining=False, preempted=False, oom=False)

    def stop(self) -> None:
        for member in self._members:
            member.stop()


def _lives(member: Member) -> bool:
    try:
        member.check()
    except EngineError:
        return False
    return True


def run_shards(store: Store, job: OpenJob, lanes: int) -> None:
    """All open shards, one a lane, and again by decision and without waits, until none is left."""
    pool = Pool(store, job, lanes)
    running: dict[Future[AttemptResult], int] = {}
    with ThreadPoolExecutor(lanes) as threads:
        try:
            while True:
                pool.mend()
                busy = set(running.values())
                idle = [one for one in open_shards(store.shards(JOB)) if one.number not in busy]
                for one in idle[: lanes - len(running)]:
                    running[threads.submit(_run, job, one, pool)] = one.number
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    del running[future]
                    _obey(future.result())
        finally:
            pool.stop()


def _run(job: OpenJob, one: Shard, pool: Pool) -> AttemptResult:
    with open_store(job.settings.store_url, create=False) as store:
        return attempt(Work(store=store, job=job.lease, shard=one, replicas=pool, owner=driver_name()))


def _obey(ended: AttemptResult) -> None:
    """As ``tasks/infer_shard.py``: what is split, or tried again, is an open shard."""
    assert ended.how in (AttemptEnd.DONE, AttemptEnd.INTERRUPTED), ended
    if ended.decision is not None and ended.decision.effect.prefect in (OnPrefect.FAIL, OnPrefect.PAUSE):
        raise JobFailedError(ended.decision.reason)


def main() -> None:
    path = Path(sys.argv[1])
    given = json.loads(path.read_text())
    # Several micro-batches a shard, so that a kill finds some of its rows committed and others not.
    pump.MICRO_BATCH_ROWS = MAX_NUM_SEQS
    placing._ASK_EVERY = 0.02
    opening.DRIVER_TTL = given.get("driver_ttl", opening.DRIVER_TTL)
    lanes = given.get("lanes", LANES)
    job = open_job(settings_of(path))
    # Whose lease is to lapse must not renew it either: a thread stopped in a commit keeps SQLite's only lock.
    with nullcontext() if "driver_ttl" in given else job_lease_kept(job):
        ingest_job(job, replicas=lanes)
        with open_store(job.settings.store_url, create=False) as store:
            run_shards(store, job, lanes)
            finalise_job(job, Timeline())
            store.release_job(job.lease)


if __name__ == "__main__":
    main()
