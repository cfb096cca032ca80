"""A running job whose store goes away: nodes and replicas are looked after all the same."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dray.errors import DrayError, FencedError, JobPausedError, StoreFatalError, StoreTransientError
from dray.job import current_job
from dray.report import Pulse
from dray.store import ShardState
from tasks import monitor as monitors
from tasks.monitor import Monitor

pytestmark = pytest.mark.unit

ORDERS = SimpleNamespace(stop=False)
COUNTS = SimpleNamespace(done=1, failed=0, total=2)
PROGRESS = SimpleNamespace(counts=COUNTS, prompt_tokens=0, completion_tokens=0)


def _shard(number: int, state: ShardState) -> Any:
    return SimpleNamespace(number=number, state=state)


class _Watched:
    """A monitor whose store a test breaks; ``calls`` counts what it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.error: DrayError | None = None
        self.idle = 0
        self.noted: list[str | None] = []
        self.no_place: str | None = None
        self.shards = [_shard(0, ShardState.LEASED), _shard(1, ShardState.PENDING)]

        def called(name: str, found: object = None, *, of_store: bool = False) -> Callable[..., Any]:
            def call(*_: object) -> Any:
                if of_store and self.error is not None:
                    raise self.error
                self.calls[name] += 1
                return found

            return call

        names = {
            "now": 0.0,
            "renew_job": None,
            "orders": ORDERS,
            "shards": self.shards,
            "progress": PROGRESS,
            "merge_job_info": None,
            "causes": {},
        }
        store = SimpleNamespace(**{name: called(name, found, of_store=True) for name, found in names.items()})

        @contextmanager
        def reopened(job: object, *, patience: float) -> Iterator[object]:
            if self.error is not None:
                raise self.error
            yield store

        monkeypatch.setattr(monitors, "reopen", reopened)
        monkeypatch.setattr(monitors, "LOOK_EVERY", 0.01)
        monkeypatch.setattr(monitors, "get_run_logger", lambda: logging.getLogger("test"))
        pool = SimpleNamespace(
            look=called("pool", []),
            take_ready=called("ready", []),
            take_told=called("told"),
            settle=called("settle", of_store=True),
            lanes=3,
            idle=lambda seconds: self.idle,
            note_idle=lambda seconds, reason: self.noted.append(reason),
            no_place_for_tasks=lambda: self.no_place,
        )
        noticing = SimpleNamespace(look=called("noticed"), record=called("recorded", of_store=True))
        ledger = SimpleNamespace(take_told=list, take_lost=list, failure=None)
        job: Any = SimpleNamespace(job_id="j", lease=SimpleNamespace(ttl=60.0), due=None)
        self.monitor = Monitor(job, pool, ledger, noticing)  # type: ignore[arg-type]

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.005)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_notices_are_obeyed_and_replicas_watched_while_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch, from_the_start: bool
) -> None:
    watched = _Watched(monkeypatch)
    watched.error = StoreTransientError("away") if from_the_start else None
    with watched.monitor:
        if not from_the_start:
            watched.until(lambda: watched.calls["settle"] > 2)
            watched.error = StoreTransientError("away")
        before = watched.calls.copy()
        watched.until(lambda: watched.calls["noticed"] > before["noticed"] + 5)
        assert watched.calls["pool"] >= before["pool"] + 5
        watched.monitor.check()  # that alone ends nothing
        assert watched.monitor.store_away
        settled = watched.calls["settle"]
        watched.error = None
        watched.until(lambda: watched.calls["settle"] > settled and watched.calls["recorded"] > 0)
    watched.monitor.check()


@pytest.mark.parametrize(
    ("error", "ends_as"),
    [(StoreFatalError("disk full"), JobPausedError), (FencedError("another driver"), FencedError)],
)
def test_what_nobody_can_wait_for_ends_the_watch(
    monkeypatch: pytest.MonkeyPatch, error: DrayError, ends_as: type[DrayError]
) -> None:
    watched = _Watched(monkeypatch)
    watched.error = error
    with watched.monitor:
        watched.until(lambda: watched.monitor.stopping)
        with pytest.raises(ends_as, match=str(error)):
            watched.monitor.check()


def test_a_short_job_has_its_last_line_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = _Watched(monkeypatch)
    monkeypatch.setattr(monitors, "LOOK_EVERY", 60.0)
    with caplog.at_level(logging.INFO), watched.monitor:
        pass
    assert "1 of 2 rows" in caplog.text


def test_others_are_told_how_far_the_job_is_and_how_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this process at every look, those of others through the store."""
    watched = _Watched(monkeypatch)
    monkeypatch.setattr(monitors, "PACE_EVERY", 0.0)
    heard: list[Pulse] = []
    with current_job.hearing(heard.append), watched.monitor:
        watched.until(lambda: watched.calls["merge_job_info"] > 1)
    assert (heard[0].finished, heard[0].total, heard[0].rows_per_second) == (1, 2, None)
    assert heard[-1].rows_per_second == 0.0


def test_replicas_without_work_are_told_of_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = _Watched(monkeypatch)
    monkeypatch.setattr(monitors, "_IDLE_SECONDS", 0.01)
    watched.idle, watched.no_place = 2, "shard tasks find no place"
    with watched.monitor:
        watched.until(lambda: len(watched.noted) > 3)
        watched.no_place = None  # the shard that waits is about to come
        watched.until(lambda: watched.noted[-1] is None)
        watched.shards[1].state = ShardState.LEASED
        watched.until(lambda: watched.noted[-1] is not None)
    assert watched.noted[0] == "has no work: shard tasks find no place"
    reason = "the job has 2 shards, and each runs on one replica"
    assert watched.noted[-1] == f"has no work: {reason}"
    told = [record.getMessage() for record in caplog.records if "have no work" in record.getMessage()]
    assert told == [
        "2 of 3 replicas have no work: shard tasks find no place",
        f"2 of 3 replicas have no work: {reason}",
    ]
