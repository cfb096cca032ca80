"""One shard of a job, and attempts at it that end early: all is real but what dies, and how that shows.

Store, spool, replicas, step loops, attempts and the driver's judgement are those of a run. The nodes exist by
name, see :mod:`tests.support.thread_fleet`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dray.cluster.asking import ReplicaResources
from dray.driver.events import Event, ReplicaLost
from dray.driver.intervals import Intervals
from dray.driver.replicas.handle import Loss, ReplicaHandle
from dray.driver.replicas.losses import Losses, StoreBudgets
from dray.driver.replicas.pool import ReplicaPool
from dray.engine.protocol import EngineSpec
from dray.errors import DrayError, EngineDeadError, ReplicaLostError
from dray.kinds import Kind
from dray.requests.model import Request
from dray.requests.spool.spool import encode
from dray.shard.attempt import attempt
from dray.shard.backoff import Backoff
from dray.shard.task import try_once
from dray.shard.work import AttemptResult, OpenWork, ShardWork
from dray.store import ReplicaRow, ReplicaState, Shard, ShardSpec, ShardState, Store, open_store
from tests.support.judging import Judging
from tests.support.stores import FINGERPRINT
from tests.support.thread_fleet import Death, Script, ThreadFleet, ThreadReplica

JOB = "job"
MARK = "BOMB"
"""The text that all rows have, and that ends engines which are to die under a row."""
ANYTHING = ""
"""The text that ends engines which are to die under dray's own request, too."""

_OPEN = (ShardState.PENDING, ShardState.LEASED)
_SEQS = 8
_NODES = ("a", "b")
_SPEC = EngineSpec(name="simulated", model="m", kind=Kind.CHAT, arguments={"max_num_seqs": _SEQS})
_ASK = ReplicaResources(cpus=1)
_START_SECONDS = 120.0
_DEATHS = EngineDeadError, ReplicaLostError

Hook = Callable[[ThreadReplica], object]


class Scene:
    """A job of one shard of ``rows``, under a driver, on two nodes."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.file = folder / "dray.db"
        self.spool = folder / "requests.jsonl"
        self.url = f"sqlite:///{self.file}"
        self.store = open_store(self.url)
        self.fleet = ThreadFleet(_NODES)
        self.store.create_job(JOB, fingerprint=FINGERPRINT, settings={})
        self.job = self.store.claim_job(JOB, "driver")
        self.store.add_shards(self.job, [self._spooled(rows)], total_rows=rows)

    def close(self) -> None:
        self.fleet.stop()
        self.store.close()

    def _spooled(self, rows: int) -> ShardSpec:
        bodies = [{"messages": [{"role": "user", "content": f"{MARK} {row}"}]} for row in range(rows)]
        lines = [
            encode(Request(index=row, custom_id=f"row-{row}", url=Kind.CHAT.url, body=body))
            for row, body in enumerate(bodies)
        ]
        length = self.spool.write_bytes(b"".join(lines))
        return ShardSpec(number=0, uri=str(self.spool), offset=0, length=length, rows=rows, first_position=0)

    @property
    def shard(self) -> Shard:
        """The first that is open: the whole, or a part of it."""
        return next(one for one in self.store.shards(JOB) if one.state in _OPEN)

    # -- what a shard's attempts decide -----------------------------------------------------------

    def attempt(
        self,
        death: Death | None = None,
        *,
        under: str = MARK,
        then: Hook = lambda replica: None,
        store: Store | None = None,
        tries: int = 0,
    ) -> str:
        """Why one attempt ended, which is as :meth:`ended` has it."""
        decision = self.ended(death, under=under, then=then, store=store, tries=tries).decision
        assert decision is not None
        return decision.reason

    def ended(
        self,
        death: Death | None = None,
        *,
        under: str = MARK,
        then: Hook = lambda replica: None,
        store: Store | None = None,
        unread_seconds: float = 0.0,
        tries: int = 0,
    ) -> AttemptResult:
        """How one attempt ended, on new replicas of which each dies so, if any does, ``under`` a text.

        ``then`` is done to the replica once the shard has its place there; the attempt has its own ``store``.
        """
        replicas = self._replicas(death, under)
        by_name = {replica.name: replica for replica in replicas}

        def placed(name: str) -> None:
            then(by_name[name])

        own = store or self.store
        work = OpenWork(store=own, job=self.job, shard=self.shard, replicas=self.fleet, owner="task")
        with Judging(self.url, self.job, _Lost(replicas)):
            ended = attempt(work, tries=tries, unread_seconds=unread_seconds, on_start=placed)
        for replica in replicas:
            replica.kill()
        return ended

    def attempts(self, *deaths: Death, then: Hook = lambda replica: None) -> str:
        """Why the last of some attempts ended, each at what is left of those before it."""
        return [self.attempt(death, then=then) for death in deaths][-1]

    def task(self, backoff: Backoff) -> Callable[[], object]:
        """What a shard's task does once, for the shard as it is now."""
        work = ShardWork(job=self.job, shard=self.shard, store_url=self.url)
        return lambda: try_once(work, self.fleet, backoff, lambda line: None)

    def _replicas(self, death: Death | None, under: str) -> list[ThreadReplica]:
        """One on each node; those of earlier attempts are gone."""
        for row in self.store.replicas(JOB):
            self.store.replica_gone(JOB, row.name)
        dying = {} if death is None else {"oom_on": under}
        spec = replace(_SPEC, arguments={**_SPEC.arguments, **dying})
        self.fleet.script = Script(death=death or Death.ENGINE, flush=0.01)
        started = len(self.fleet.replicas)
        replicas = [
            self.fleet.launch(f"{JOB}/replica-{lane}~{started}", spec, _ASK, avoid=()) for lane in range(2)
        ]
        self.store.put_replicas(self.job, [_ready(replica, lane) for lane, replica in enumerate(replicas)])
        return replicas

    # -- what the driver decides ------------------------------------------------------------------

    def start(self, replicas: int, error: DrayError | None = None, **broken: float) -> str:
        """Why the driver lost the last of these replicas. The first one starts, and takes long over it.

        The engines of the others are built so, or their processes end of ``error``.
        """

        def fail() -> None:
            assert error is not None
            raise error

        def spec(given: EngineSpec, node: str) -> EngineSpec:
            changed = broken if self.fleet.replicas else {}
            return replace(given, arguments={**given.arguments, **changed})

        self.fleet.script = Script(spec=spec)
        heard: list[Event] = []
        losses = Losses(self.job, heard.append)
        never = Intervals(relaunch=_START_SECONDS)
        pool = ReplicaPool(JOB, _SPEC, self.fleet, replicas, never)
        pool.launch_due(StoreBudgets(self.store, JOB, losses))
        self.fleet.replicas[0].began = lambda: None  # type: ignore[method-assign]
        for replica in self.fleet.replicas[1:] if error is not None else ():
            replica.began = fail  # type: ignore[method-assign]
        deadline = time.monotonic() + _START_SECONDS
        while len(lost := [one for one in heard if isinstance(one, ReplicaLost)]) < replicas - 1:
            assert time.monotonic() < deadline
            pool.look()
            losses.add(pool.take_losses())
            losses.judge(self.store)
            time.sleep(0.005)
        return lost[-1].reason


class _Lost:
    """The replicas that died, as their driver finds them."""

    def __init__(self, replicas: Sequence[ThreadReplica]) -> None:
        self._left = list(replicas)

    def __call__(self, store: Store) -> list[Loss]:
        found = [replica for replica in self._left if isinstance(replica.lost, _DEATHS)]
        self._left = [replica for replica in self._left if replica not in found]
        return [_loss(replica) for replica in found]


def _loss(replica: ThreadReplica) -> Loss:
    assert replica.lost is not None
    handle = ReplicaHandle(lane=0, process=replica, slots=2, node=replica.node())
    return Loss(replica=handle, error=replica.lost)


def _ready(replica: ThreadReplica, lane: int) -> ReplicaRow:
    node = replica.node()
    return ReplicaRow(
        name=replica.name,
        lane=lane,
        state=ReplicaState.READY,
        slots=2,
        node=node,
        host=node,
        max_num_seqs=_SEQS,
    )
