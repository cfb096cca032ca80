"""Waiting for the first replica; the line of a start says what took time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster.asking import ReplicaResources
from dray.cluster.member import ReplicaStart
from dray.engine import EngineInfo, ReplicaStatus
from dray.errors import EngineStartError, JobPausedError, StoreUnreachableError
from dray.job.timeline import Timeline
from tasks import patience, replicas
from tasks.replicas import ready_line

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("timeline", "weights", "told"),
    [
        ({"import": 4.51, "engine": 1.04}, None, " (import 4.5 s, engine 1.0 s)"),
        ({"import": 4.5, "wait": 0.0, "engine": 1.0, "load": 0.3}, None, " (import 4.5 s, engine 1.0 s)"),
        (
            {"import": 4.5, "wait": 2.07, "engine": 1.0, "load": 0.2},
            (1.0, 9.0),
            " (import 4.5 s, wait 2.1 s, engine 1.0 s, load 0.2 s)",
        ),
        (
            {"import": 4.5, "wait": 0.0003, "engine": 1.0, "load": 0.04},
            (1.0, 9.0),
            " (import 4.5 s, engine 1.0 s)",
        ),
        ({"engine": 1e-5}, None, ""),
    ],
)
def test_parts_that_took_time_are_told(
    timeline: dict[str, float], weights: tuple[float, float] | None, told: str
) -> None:
    info = EngineInfo(
        engine="e",
        version="0",
        model="m",
        max_num_seqs=1,
        max_model_len=9,
        timeline=timeline,
        weights=weights,
    )
    start = ReplicaStart(name="job/replica-0", began=100.0, process=100.5, ready=106.24, info=info)
    assert ready_line(start) == f"replica-0 ready after 6.2 s{told}"


class _Pool:
    """Has a replica after some looks; its store is away for some of its turns."""

    lanes = 1
    ask = ReplicaResources(cpus=1)
    waits: str | None = None

    def __init__(self, *, ready_after: int, away: int = 0) -> None:
        self.looks = 0
        self._ready_after, self._away = ready_after, away

    def look(self) -> list[ReplicaStatus]:
        self.looks += 1
        return []

    def take_ready(self) -> list[ReplicaStart]:
        return []

    def take_told(self) -> str | None:
        return None

    def waiting(self) -> str | None:
        return self.waits

    def starts(self) -> list[object]:
        return [object()] if self.looks >= self._ready_after else []

    def settle(self) -> None:
        if self._away:
            self._away -= 1
            raise StoreUnreachableError("away")


class _Noticing:
    def look(self) -> None:
        pass

    def record(self) -> None:
        pass


def _started(monkeypatch: pytest.MonkeyPatch, pool: _Pool, *, stop: bool = False) -> bool:
    @contextmanager
    def reopened(job: object, *, patience: float) -> Iterator[object]:
        yield SimpleNamespace(orders=lambda job_id: SimpleNamespace(stop=stop, expired=False))

    monkeypatch.setattr(replicas, "reopen", reopened)
    monkeypatch.setattr(replicas, "get_run_logger", lambda: logging.getLogger("test"))
    ledger = SimpleNamespace(take_told=list, failure=None)
    job = SimpleNamespace(job_id="j", settings=SimpleNamespace(replicas=None))
    return bool(
        replicas.start_replicas.fn(job, pool, ledger, _Noticing(), Timeline())  # type: ignore[arg-type]
    )


def test_the_first_replica_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _started(monkeypatch, _Pool(ready_after=3))


@pytest.mark.parametrize(
    ("ask", "wanted", "told"),
    [
        (ReplicaResources(cpus=1, gpus=2), 2, "starting 2 replicas, each with 2 GPUs and 1 CPU"),
        (
            ReplicaResources(cpus=1, gpus=2),
            None,
            "starting 2 replicas, each with 2 GPUs and 1 CPU, for the GPUs that are there now; "
            "--replicas asks for more",
        ),
        (ReplicaResources(cpus=4), None, "starting 2 replicas, each with 4 CPUs; --replicas asks for more"),
        (ReplicaResources(cpus=0), 2, "starting 2 replicas"),
    ],
)
def test_the_log_says_how_many_replicas_with_what(
    ask: ReplicaResources, wanted: int | None, told: str
) -> None:
    job: Any = SimpleNamespace(settings=SimpleNamespace(replicas=wanted))
    pool: Any = SimpleNamespace(lanes=2, ask=ask)
    assert replicas._plan(job, pool) == told


def test_a_store_that_is_away_while_engines_start_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert _started(monkeypatch, _Pool(ready_after=1, away=4))
    assert "the store does not answer: StoreUnreachableError" in caplog.text
    monkeypatch.setattr(patience, "STORE_PATIENCE", 0.2)
    with pytest.raises(JobPausedError, match="`dray resume` goes on"):
        _started(monkeypatch, _Pool(ready_after=1, away=100))


def test_nobody_waits_for_the_replicas_of_a_cancelled_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _started(monkeypatch, _Pool(ready_after=10**6), stop=True)
    monkeypatch.setattr(replicas, "START_SECONDS", 0.2)
    with pytest.raises(EngineStartError, match="none of 1 replicas is ready after 0 s"):
        _started(monkeypatch, _Pool(ready_after=10**6))
    waits = _Pool(ready_after=10**6)
    waits.waits = "1 of 1 replicas wait: each asks for 1 GPU, no node has a GPU"
    with pytest.raises(EngineStartError, match=r"0 s: 1 of 1 replicas wait: .* no node has a GPU"):
        _started(monkeypatch, waits)
