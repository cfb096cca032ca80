"""A job's figures, as a driver's events make them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from dray.cluster import ClusterInfo
from dray.driver.events import (
    Event,
    NodeNoticed,
    Progressed,
    ReplicaChanged,
    ReplicaLooked,
    ReplicaLost,
    StoreAway,
)
from dray.driver.telling.metrics import (
    BUSY,
    COMPLETION,
    FIGURES,
    LOSSES,
    NOTICES,
    PROMPT,
    REPLICAS,
    ROWS,
    RUNNING,
    SECONDS_LEFT,
    STORE_AWAY,
    TOKENS,
    WAITING,
    WRITE_EVERY,
    Figure,
    MetricsObserver,
    metrics_of,
)
from dray.engine.loop_stats import LoopStats
from dray.engine.replica import ReplicaStatus
from dray.notices.notice import Notice, NoticeKind
from dray.report import Pulse
from dray.store import ReplicaState

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs/metrics.md"


class Kept:
    """Meters as Ray's: a gauge has its last value, a total the sum."""

    def __init__(self) -> None:
        self.values: dict[tuple[Figure, str], float] = defaultdict(float)

    def write(self, figure: Figure, value: float, labels: Mapping[str, str]) -> None:
        assert set(labels) == set(figure.labels)
        assert value >= 0
        key = (figure, ",".join(labels.values()))
        self.values[key] = self.values[key] + value if figure.total else value

    def of(self, figure: Figure) -> dict[str, float]:
        return {label: value for (one, label), value in self.values.items() if one is figure}


class Job:
    """An observer, and the events of a job of 100 rows."""

    def __init__(self) -> None:
        self.kept, self.now = Kept(), 0.0
        self._observer = MetricsObserver(self.kept, clock=lambda: self.now)

    def hear(self, *events: Event) -> None:
        for event in events:
            self._observer.hear(event)

    def progress(
        self, finished: int, *, failed: int = 0, rate: float | None = None, final: bool = False
    ) -> None:
        self.now += WRITE_EVERY
        pulse = Pulse(finished=finished, failed=failed, total=100, tokens=7 * finished, rows_per_second=rate)
        self.hear(Progressed(pulse=pulse, final=final))


def _status(
    name: str, *, began: float = 1.0, busy: float = 0.0, tokens: int = 0, running: int = 0, waiting: int = 0
) -> ReplicaLooked:
    stats = LoopStats(busy_seconds=busy, prompt_tokens=2 * tokens, completion_tokens=tokens)
    return ReplicaLooked(
        status=ReplicaStatus(
            name=name, node="n", pid=1, began=began, running=running, waiting=waiting, sessions=0,
            stats=stats, log=[],
        )
    )  # fmt: skip


def _changed(name: str, state: ReplicaState) -> ReplicaChanged:
    return ReplicaChanged(name=name, state=state, began=1.0, at=2.0, node="n", host="h", gpus=0)


def test_rows_tokens_and_the_time_that_is_left() -> None:
    job = Job()
    job.progress(60, failed=10, rate=8.0)
    assert job.kept.of(ROWS) == {"done": 50, "failed": 10, "open": 40}
    assert job.kept.of(TOKENS) == {"": 420}
    assert job.kept.of(SECONDS_LEFT) == {"": 5}


def test_time_that_is_left_does_not_stand_still_where_rows_do() -> None:
    """An alert that the job takes too long never fired while all engines were stuck."""
    job, seen = Job(), []
    for finished, rate in ((0, None), (60, 8.0), (60, 0.0), (100, 8.0)):
        job.progress(finished, rate=rate)
        seen.append(job.kept.of(SECONDS_LEFT))
    assert seen == [{}, {"": 5}, {"": math.inf}, {"": 0}]


def test_gauges_are_written_now_and_then_and_the_last_ones_at_once() -> None:
    job = Job()
    job.progress(10)
    job.now -= WRITE_EVERY  # the next look is no time later
    job.progress(20)
    assert job.kept.of(ROWS)["done"] == 10
    job.now -= WRITE_EVERY
    job.progress(30, final=True)
    assert job.kept.of(ROWS)["done"] == 30


def test_replicas_by_state() -> None:
    job = Job()
    job.hear(*(_changed(f"j/1/replica-{one}", ReplicaState.STARTING) for one in range(3)))
    job.hear(_changed("j/1/replica-0", ReplicaState.READY), _changed("j/1/replica-1", ReplicaState.GONE))
    job.progress(1)
    assert job.kept.of(REPLICAS) == {"starting": 1, "ready": 1, "leaving": 0}
    job.progress(2, final=True)
    assert job.kept.of(REPLICAS) == {"starting": 0, "ready": 0, "leaving": 0}


def test_what_a_replica_does_and_that_its_successor_begins_anew() -> None:
    """Two looks at one process count what came between them; another process counts from nothing."""
    job = Job()
    name = "j/1/replica-0"
    job.hear(_changed(name, ReplicaState.READY), _status(name, busy=1.5, tokens=100, running=4, waiting=9))
    job.progress(1)
    assert (job.kept.of(RUNNING), job.kept.of(WAITING)) == ({"replica-0": 4}, {"replica-0": 9})
    job.hear(_status(name, busy=2.0, tokens=130, running=3))
    job.progress(2)
    assert job.kept.of(COMPLETION) == {"replica-0": 130}
    job.hear(_status(name, busy=2.5, tokens=150, running=3), _changed(name, ReplicaState.GONE))
    assert job.kept.of(RUNNING) == {"replica-0": 0}
    job.hear(_status(f"{name}~1", began=9.0, busy=0.5, tokens=40, running=2))
    job.progress(3)
    assert job.kept.of(COMPLETION) == {"replica-0": 190}
    assert job.kept.of(PROMPT) == {"replica-0": 380}
    assert job.kept.of(BUSY) == {"replica-0": 3.0}
    assert job.kept.of(RUNNING) == {"replica-0": 2}
    job.progress(4, final=True)
    assert job.kept.of(RUNNING) == {"replica-0": 0}
    assert job.kept.of(COMPLETION) == {"replica-0": 190}


def test_the_end_of_a_replica_leaves_its_successors_figures() -> None:
    job = Job()
    job.hear(_status("j/1/replica-0~1", began=9.0, running=2), _changed("j/1/replica-0", ReplicaState.GONE))
    job.progress(1)
    assert job.kept.of(RUNNING) == {"replica-0": 2}


def test_losses_notices_and_a_store_that_is_away() -> None:
    job = Job()
    lost = ReplicaLost(name="j/1/replica-0", node="n", cause="node_lost", reason="its node died")
    notice = Notice(
        source="aws", id="1", kind=NoticeKind.INTERRUPTION, action="terminate", deadline=None, seen_at=1.0
    )
    job.hear(lost, lost, NodeNoticed(node="n", host="h", notice=notice), StoreAway(error="OperationalError"))
    assert job.kept.of(LOSSES) == {"node_lost": 2}
    assert job.kept.of(NOTICES) == {"aws": 1}
    assert job.kept.of(STORE_AWAY) == {"": 1}
    job.progress(1)
    assert job.kept.of(STORE_AWAY) == {"": 0}


def test_a_cluster_of_our_own_gets_no_metrics() -> None:
    info = ClusterInfo(address="a", nodes=(), seconds=0, stable_resource="dray_stable", own=True)
    assert metrics_of("j", info) == []


def test_the_documentation_lists_them_all() -> None:
    rows = dict(re.findall(r"^\| `ray_(dray_\w+)` \| (.*?) ?\|", DOCS.read_text(), re.MULTILINE))
    assert rows == {
        one.name + ("_total" if one.total else ""): " ".join(f"`{label}`" for label in one.labels)
        for one in FIGURES
    }
