"""A driver whose store goes away: nodes and replicas are looked after all the same. What people are told."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from ray.exceptions import AuthenticationError

from dray.cluster.base import START_SECONDS
from dray.cluster.capacity import Capacity, Room
from dray.driver import outage, run
from dray.driver.events import (
    NodeNoticed,
    Progressed,
    ReplicaLost,
    ReplicaReady,
    ReplicasIdle,
    StopHeard,
    StoreAway,
    StoreBack,
    Told,
)
from dray.driver.executor import TaskEnd
from dray.driver.outage import SpoolWatch
from dray.driver.replicas import pool, readiness, waiting
from dray.driver.run import Driver
from dray.driver.shard_tasks import shards as shard_tasks
from dray.driver.whole_job import engine_spec
from dray.errors import (
    DrayError,
    EngineStartError,
    FencedError,
    JobFailedError,
    JobPausedError,
    ReplicaLostError,
    StoreFatalError,
    StoreTransientError,
)
from dray.job.beginning.opening import open_job
from dray.job.open_job import OpenJob, reopen
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.notices import Notice, NoticeKind
from dray.shard.task import Ended, TaskResult
from dray.store import AttemptCause, JobState, Store
from tests.support.clocks import replace_here
from tests.unit.driver.scripted import (
    ALIVE,
    NODE,
    QUICK,
    BreakableStore,
    Heard,
    Poll,
    ScriptedExecutor,
    ScriptedFleet,
)

pytestmark = pytest.mark.unit

Steps = Iterator[None]
AWAY = StoreTransientError("away")


class Scene(ScriptedExecutor):
    """A driver and what happens around it: ``play`` goes on with a test's own steps at each of the driver's.

    When they are over the job is cancelled, and its tasks end.
    """

    def __init__(
        self, settings: JobSettings, monkeypatch: pytest.MonkeyPatch, *scripts: list[Poll], lanes: int = 1
    ) -> None:
        super().__init__()
        self.job: OpenJob = open_job(settings)
        self.shards = ingest_job(self.job, replicas=lanes)
        self.look = reopen(self.job)
        self.store = BreakableStore(reopen(self.job))
        self.fleet = ScriptedFleet(*(scripts or ([True],)))
        self.heard = Heard()
        self.lanes = lanes
        self._steps: Steps = iter(())
        self._over = False
        self._ended = 0
        monkeypatch.setattr(run, "reopen", self._reopen)

    def _reopen(self, job: OpenJob, *, patience: float) -> BreakableStore:
        if self.store.error is not None:
            raise self.store.error
        return self.store

    def play(self, steps: Steps) -> bool:
        """Run the driver; whether it had a replica before the job was to stop."""
        self._steps = steps
        driver = self.driver = Driver(
            self.job,
            self.fleet,
            self,
            [self.heard],
            spec=engine_spec(self.job),
            shards=self.shards,
            replicas=self.lanes,
            intervals=QUICK,
        )
        with driver:
            ready = driver.until_ready()
            driver.run()
        return ready

    def poll(self, seconds: float) -> list[TaskEnd]:
        super().poll(seconds)
        if not self._over and next(self._steps, StopIteration) is not StopIteration:
            return []
        if not self._over:
            self._over = True
            self.store.error = None
            self.look.request_cancel(self.job.job_id)
        new, self._ended = self.submitted[self._ended :], len(self.submitted)
        return [TaskEnd(number=one, result=TaskResult(how=Ended.STOPPED, message="")) for one in new]

    def until(self, done: Callable[[], bool], seconds: float = 20.0) -> Steps:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline
            yield

    def is_ready(self) -> bool:
        return any(row.state == "ready" for row in self.look.replicas(self.job.job_id))

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.heard.events if isinstance(event, kind)]


@pytest.fixture
def settings(make_settings: Callable[..., JobSettings]) -> JobSettings:
    return make_settings(shard_rows=25, job_id="job")


@pytest.fixture
def scene(settings: JobSettings, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(settings, monkeypatch)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_notices_are_obeyed_and_replicas_watched_while_the_store_is_away(
    scene: Scene, from_the_start: bool
) -> None:
    def steps() -> Steps:
        if not from_the_start:
            yield from scene.until(scene.is_ready)
        scene.store.error = AWAY
        deadline = time.time() + 30
        notice = Notice(
            source="aws", kind=NoticeKind.INTERRUPTION, action="stop", deadline=deadline, seen_at=0.0, id="1"
        )
        scene.fleet.fresh.append((NODE, notice))
        yield from scene.until(lambda: scene.fleet.drained == [NODE])
        if not from_the_start:
            assert scene.fleet.processes[0].drains
        looks = scene.fleet.looks
        yield from scene.until(lambda: scene.fleet.looks > looks + 5)  # that alone ends nothing
        assert not scene.look.notices("job")
        scene.store.error = None
        yield from scene.until(lambda: bool(scene.look.notices("job")))
        yield from scene.until(lambda: len(scene.fleet.processes) > (not from_the_start))

    scene.play(steps())
    assert len(scene.told(NodeNoticed)) == len(scene.told(StoreAway)) == len(scene.told(StoreBack)) == 1
    assert "the store does not answer: away" in scene.heard.lines


def test_a_notice_that_came_while_the_store_was_away_explains_the_loss_of_that_time(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(settings, monkeypatch, [True], [True])

    def steps() -> Steps:
        yield from scene.until(scene.is_ready)
        scene.store.error = AWAY
        yield from scene.until(lambda: bool(scene.told(StoreAway)))
        notice = Notice(
            source="aws", kind=NoticeKind.INTERRUPTION, action="stop", deadline=None, seen_at=0, id="1"
        )
        scene.fleet.fresh.append((NODE, notice))
        process = scene.fleet.processes[0]
        yield from scene.until(lambda: bool(process.drains))
        process.sessions, process.facts = 1, replace(ALIVE, alive=False)
        process.answers, process.gone = [ReplicaLostError("gone")], True
        yield from scene.until(lambda: process.killed)
        scene.store.error = None
        yield from scene.until(lambda: bool(scene.told(ReplicaLost)))

    scene.play(steps())
    assert [event.cause for event in scene.told(ReplicaLost)] == ["SPOT"]
    assert scene.look.charges("job") == []


@pytest.mark.parametrize(
    ("error", "ends_as"),
    [(StoreFatalError("disk full"), JobPausedError), (FencedError("another driver"), FencedError)],
)
def test_what_cannot_be_waited_for_ends_the_run(
    scene: Scene, error: DrayError, ends_as: type[DrayError]
) -> None:
    def steps() -> Steps:
        yield from scene.until(scene.is_ready)
        scene.store.error = error
        yield from scene.until(lambda: False)

    with pytest.raises(ends_as, match=str(error)):
        scene.play(steps())
    assert scene.closed
    assert all(one.killed for one in scene.fleet.processes)


def test_a_store_that_stays_away_while_engines_start_puts_the_job_to_rest(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "STORE_PATIENCE", 0.2)
    scene.store.error = AWAY
    with pytest.raises(JobPausedError, match="`dray resume JOB` goes on"):
        scene.play(scene.until(lambda: False))
    assert "the store does not answer: away" in scene.heard.lines


def test_no_replica_is_awaited_while_the_store_that_it_is_asked_for_by_is_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both waits are as long, and the other one would blame the engine."""
    monkeypatch.setattr(outage, "STORE_PATIENCE", 0.5)
    monkeypatch.setattr(readiness, "START_SECONDS", 0.5)
    scene.store.error = AWAY
    with pytest.raises(JobPausedError, match="the store has been away"):
        scene.play(scene.until(lambda: False))
    assert scene.fleet.processes == []


def test_replicas_have_all_of_their_time_once_the_model_has_come(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of 800 GB takes two hours at 1 Gbit/s, and a start half of one."""
    monkeypatch.setattr(readiness, "START_SECONDS", 0.5)
    monkeypatch.setattr(pool, "START_SECONDS", 0.5)
    monkeypatch.setattr(waiting, "_LOOK_SECONDS", 0.01)
    scene = Scene(settings, monkeypatch, [])
    began = time.monotonic()

    def come() -> Steps:
        while time.monotonic() < began + 2.0:
            scene.driver.note_weights()
            yield
        yield from scene.until(lambda: False)

    with pytest.raises(EngineStartError, match=r"ready after 0 s"):
        scene.play(come())
    assert time.monotonic() > began + 2.4


class _ReadOnly(BreakableStore):
    """A store that another program keeps all writers out of."""

    def __getattr__(self, name: str) -> Any:
        error, self.error = self.error, None
        try:
            if error is not None and name in ("put_replicas", "merge_job_info", "take_back", "charge"):
                raise error
            return super().__getattr__(name)
        finally:
            self.error = error


def test_no_task_stands_still_while_the_store_takes_no_writes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite another program may keep all writers out: shards are read, and no lease can be renewed."""
    monkeypatch.setattr(shard_tasks, "HUNG_SECONDS", 1.0)
    scene.store = _ReadOnly(reopen(scene.job))

    def steps() -> Steps:
        yield from scene.until(scene.is_ready)
        scene.look.claim_shard(scene.job.lease, 0, owner="w", ttl=0.1)
        scene.store.error = AWAY
        began = time.monotonic()
        yield from scene.until(lambda: time.monotonic() > began + 3.0)
        assert scene.cancelled == []

    scene.play(steps())


def test_a_short_job_has_its_last_line_too(scene: Scene) -> None:
    scene.play(scene.until(scene.is_ready))
    assert scene.told(Progressed)[-1].final
    assert "0 of 50 rows" in scene.told(Progressed)[-1].text


def test_what_a_replica_logs_is_told(scene: Scene) -> None:
    def steps() -> Steps:
        yield from scene.until(scene.is_ready)
        scene.fleet.processes[0].log.append((20, "vllm", "compiled"))
        yield from scene.until(lambda: "[replica-0] vllm: compiled" in scene.heard.lines)

    scene.play(steps())


def test_replicas_without_work_are_told_of_with_the_reason(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(settings, monkeypatch, [True], [True], [True], lanes=3)
    reason = "the job has 2 shards, and each runs on one replica"

    def notes() -> set[str | None]:
        return {row.note for row in scene.look.replicas("job")}

    def steps() -> Steps:
        scene.look.claim_shard(scene.job.lease, 0, owner="w")
        scene.fleet.no_place = "shard tasks find no place"
        yield from scene.until(lambda: notes() == {"has no work: shard tasks find no place"})
        scene.fleet.no_place = None  # the shard that waits is about to come
        yield from scene.until(lambda: notes() == {None})
        scene.look.claim_shard(scene.job.lease, 1, owner="w")
        yield from scene.until(lambda: notes() == {f"has no work: {reason}"})

    scene.play(steps())
    told = scene.told(ReplicasIdle)
    assert [event.reason for event in told] == ["shard tasks find no place", reason]
    assert told[-1].text == f"3 of 3 replicas have no work: {reason}"


def test_the_first_replica_is_enough(settings: JobSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(settings, monkeypatch, [], [False, False, True], lanes=2)
    assert scene.play(scene.until(scene.is_ready))
    assert scene.told(Told)[0].line.startswith("starting 2 replicas")
    assert [one.killed for one in scene.fleet.processes] == [True, True]


def test_the_replicas_of_a_cancelled_job_are_not_waited_for(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(settings, monkeypatch, [])
    assert not scene.play(iter(()))
    assert [event.text for event in scene.told(StopHeard)] == ["cancel requested: keeping what is committed"]


def test_replicas_that_are_never_ready_end_the_job_with_the_reason(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "START_SECONDS", 0.2)
    scene = Scene(settings, monkeypatch, [])
    with pytest.raises(EngineStartError, match=r"none of 1 replicas is ready after 0 s$"):
        scene.play(scene.until(lambda: False))


def test_a_job_whose_replicas_are_gone_for_long_is_put_to_rest(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of the only replica went, and no other one comes."""
    scene = Scene(settings, monkeypatch, [True], [])
    monkeypatch.setattr(readiness, "START_SECONDS", 0.3)

    def lose_the_node() -> Steps:
        yield from scene.until(scene.is_ready)
        [process] = scene.fleet.processes
        process.answers, process.gone = [ReplicaLostError("gone")], True
        yield from scene.until(lambda: False)

    with pytest.raises(JobPausedError, match=r"none of 1 replicas has been ready for 0.*`dray resume JOB`"):
        scene.play(lose_the_node())
    job = scene.look.get_job("job")
    assert job.state is JobState.PAUSED
    assert "has been ready" in (job.reason or "")


def test_nothing_stays_of_a_driver_that_fails_as_it_starts(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shard tasks run by then: they would go on without a driver."""
    scene = Scene(settings, monkeypatch)
    scene.store.error = FencedError("another driver has the job")
    with pytest.raises(FencedError):
        scene.play(iter(()))
    assert scene.submitted
    assert scene.closed
    assert all(process.killed for process in scene.fleet.processes)


def test_a_job_that_stops_does_not_wait_for_a_task_that_never_began(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stable node is gone, or its process hangs: it has no lease that could lapse."""
    monkeypatch.setattr(shard_tasks, "ENDING_SECONDS", 0.2)
    scene = Scene(settings, monkeypatch)

    def steps() -> Steps:
        yield from scene.until(scene.is_ready)
        scene.look.request_cancel("job")
        yield from scene.until(lambda: False)

    scene.play(steps())
    assert scene.closed
    assert scene.told(StopHeard)


def test_a_fault_of_the_driver_is_named_with_its_place(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault() -> Steps:
        yield
        raise TypeError("a prompt")

    scene = Scene(settings, monkeypatch)
    with pytest.raises(JobFailedError) as failed:
        scene.play(fault())
    told = r"driving the job failed: TypeError at run\.py:\d+, raised in test_run\.py:\d+"
    assert re.fullmatch(told, str(failed.value))
    assert scene.look.get_job("job").reason == str(failed.value)


def test_a_head_that_was_started_anew_pauses_the_job(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same address, as a container that Kubernetes restarts: it refuses all that was there before."""

    def refused() -> Steps:
        yield
        raise AuthenticationError("InvalidAuthToken")

    scene = Scene(settings, monkeypatch)
    with pytest.raises(JobPausedError, match=r"was started anew.*`dray resume JOB` goes on"):
        scene.play(refused())
    assert scene.look.get_job("job").state is JobState.PAUSED


def test_an_engine_that_does_not_start_is_named_with_its_model(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(settings, monkeypatch, [EngineStartError("KeyError: 'added_tokens'")])
    told = f"the engine did not start: {settings.model}: KeyError: 'added_tokens'"
    with pytest.raises(EngineStartError) as failed:
        scene.play(scene.until(lambda: False))
    assert str(failed.value) == told
    assert scene.look.get_job("job").reason == told


def test_what_replicas_wait_for_is_the_reason(settings: JobSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "START_SECONDS", 2.0)
    monkeypatch.setattr(waiting, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(waiting, "_PLACING_SECONDS", 0.1)
    scene = Scene(settings, monkeypatch, [])
    room = Room(cpus=8, gpus=0, free_cpus=0, free_gpus=0)
    scene.fleet.seen = Capacity(nodes=(NODE,), rooms=(room,))

    scene.fleet.place = None
    with pytest.raises(EngineStartError, match=r"2 s: 1 of 1 replicas wait: .* free node has 0 CPUs"):
        scene.play(scene.until(lambda: False))
    assert any("replicas wait: each asks for" in line for line in scene.heard.lines)


def test_a_driver_that_stood_still_goes_on_with_what_it_has(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped for longer than it waits for a first replica, and for a sign of one."""
    scene = Scene(settings, monkeypatch, [*[False] * 40, True], [True], lanes=2)
    stood, real = [0.0], time.monotonic
    replace_here(monkeypatch, time, "monotonic", lambda: real() + stood[0])

    def stand_still() -> Steps:
        stood[0] += 2 * START_SECONDS
        yield from scene.until(iter([False] * 30 + [True]).__next__)

    def steps() -> Steps:
        yield from stand_still()
        yield from scene.until(lambda: len(scene.told(ReplicaReady)) == 2)
        yield from stand_still()
        assert scene.told(ReplicaLost) == []

    assert scene.play(steps())


class _Causes:
    """A store that counts attempts which could not read their requests."""

    def __init__(self) -> None:
        self.found = 3

    def causes(self, job_id: str) -> dict[str, int]:
        return {AttemptCause.SPOOL_AWAY: self.found}


def test_attempts_that_could_not_read_their_requests_are_told_of_once() -> None:
    heard = Heard()
    watch, store = SpoolWatch("job", heard.hear), _Causes()
    for found in (3, 3, 5, 5):  # those of an earlier run are no news
        store.found = found
        watch.look(cast("Store", store))
    [line] = heard.lines
    assert f"2 attempts at shards ({AttemptCause.SPOOL_AWAY})" in line
