"""A job on Ray's own autoscaler, with real raylets: it grows, loses a node to a notice, and shrinks."""

from __future__ import annotations

import html
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event as Flag
from threading import Thread

import pytest

from dray.cluster import ClusterSettings, open_cluster
from dray.driver.events import CapacityDecided, Event, NodeLeft, NodeNoticed, ReplicaReady
from dray.driver.intervals import Intervals
from dray.driver.telling.observers import LogObserver
from dray.driver.whole_job import Parts, run_job
from dray.job.ending.result import JobResult
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.places import lane_of
from dray.report import ReportData
from dray.report.data import JOB_LANE
from dray.requests.sources import RowDefaults, source_of
from dray.shard.task import RayReplicas
from dray.store import JobState, open_store
from tests.support.command import write_requests
from tests.support.raylets import Raylets, Shape
from tests.support.thread_executor import ThreadExecutor

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(300)]

SEQS, TOKENS, TOKEN_SECONDS = 4, 8, 0.1
ROWS, LONG = 400, 250
"""Rows of 0.8 s, and tokens of the last one: the tail that one replica works at alone."""


@pytest.fixture
def raylets(tmp_path: Path) -> Iterator[Raylets]:
    """A head without room for a replica, whose autoscaler may start three nodes."""
    shape = Shape(head_cpus=0, cpus=1, stable=1, light=True, autoscaled=3, idle_seconds=3.0)
    found = Raylets(tmp_path / "cluster", 1, shape=shape, log=tmp_path / "cluster.log")
    yield found
    found.stop()


class Taker:
    """Takes a node away, with a notice as of a cloud, once three replicas have worked for a moment."""

    def __init__(self, raylets: Raylets) -> None:
        self.events: list[tuple[float, Event]] = []
        self.taken: str | None = None
        self._raylets = raylets
        self._ready = Flag()
        self._thread = Thread(target=self._take, daemon=True)
        self._thread.start()

    def hear(self, event: Event) -> None:
        self.events.append((time.monotonic(), event))
        if isinstance(event, ReplicaReady) and len(self.of(ReplicaReady)) == 3:
            self._ready.set()

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def _take(self) -> None:
        if not self._ready.wait(120):
            return
        time.sleep(3.0)
        import ray

        nodes = [one for one in ray.nodes() if one["Alive"] and "dray_stable" not in one["Resources"]]
        self.taken = nodes[-1]["NodeID"]
        self._raylets.drain(self.taken, 12.0)
        time.sleep(8.0)
        self._raylets.kill_started(self.taken)


def test_a_job_grows_loses_a_node_and_shrinks(raylets: Raylets, tmp_path: Path) -> None:
    taker = Taker(raylets)
    result = _run(raylets, tmp_path, taker)
    assert result.state == JobState.COMPLETED
    decided = [one for one in taker.of(CapacityDecided) if isinstance(one, CapacityDecided)]
    assert (decided[0].before, decided[0].replicas) == (1, 3)
    assert decided[-1].replicas == 1
    noticed = {one.node for one in taker.of(NodeNoticed) if isinstance(one, NodeNoticed)}
    assert taker.taken in noticed
    starts = [one.start.name for one in taker.of(ReplicaReady) if isinstance(one, ReplicaReady)]
    assert len(starts) == 4  # the lane that lost its node came back
    assert len({lane_of(name) for name in starts}) == 3
    left = {one.node for one in taker.of(NodeLeft) if isinstance(one, NodeLeft)}
    assert left - {taker.taken}  # the autoscaler has ended one that was given back, before the job's end
    report = _report(tmp_path)
    lines = [one.line for one in report.decisions]
    assert any("too long for the deadline" in line for line in lines)
    assert any(line.startswith("3 replicas instead of 1: ") for line in lines)
    assert lines[-1].startswith("1 replica instead of ")
    assert "no shard waits" in lines[-1]
    started = [
        phase.lane for phase in report.phases if phase.name == "engine_start" and phase.lane != JOB_LANE
    ]
    assert sorted(started) == sorted(lane_of(name) for name in starts)
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(html.escape(line) in page for line in lines)
    assert {attempt.replica.partition("~")[0] for attempt in report.attempts if attempt.rows} == {
        lane_of(name) for name in starts
    }


def _run(raylets: Raylets, folder: Path, taker: Taker) -> JobResult:
    inputs = write_requests(folder / "in.jsonl", ROWS, max_tokens=TOKENS)
    lines = inputs.read_text().splitlines()
    lines[-1] = lines[-1].replace(f'"max_tokens": {TOKENS}', f'"max_tokens": {LONG}')
    assert str(LONG) in lines[-1]
    inputs.write_text("\n".join(lines) + "\n")
    request = JobRequest.of(
        input=str(inputs),
        model="simulated",
        output=str(folder / "out"),
        replicas="1:3",
        deadline="40s",
        engine={"order": "input"},
    )
    settings = JobSettings(
        source=source_of(str(inputs)),
        defaults=RowDefaults(),
        model="simulated",
        output=str(folder / "out"),
        store_url=f"sqlite:///{folder / 'jobs.db'}",
        engine="simulated",
        engine_arguments={"max_num_seqs": SEQS, "seconds_per_token": TOKEN_SECONDS},
        replicas=1,
        most_replicas=3,
        replica_cpus=1,
        job_id="job",
        shard_rows=8,
        request=request,
    )
    where: ClusterSettings = raylets.settings
    parts = Parts(
        where=where,
        cluster=open_cluster(where),
        executor_of=lambda _: ThreadExecutor(RayReplicas()),
        observers=[taker, LogObserver(logging.getLogger("run"))],
        intervals=Intervals(scale=0.5, grow=1.0, shrink=4.0),
    )
    return run_job(settings, parts)


def _report(folder: Path) -> ReportData:
    with open_store(f"sqlite:///{folder / 'jobs.db'}", create=False) as store:
        return ReportData.from_json(store.get_job("job").summary["report"])
