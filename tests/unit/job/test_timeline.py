"""When each part of a run began and ended."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dray.job.ending.timeline import Timeline

pytestmark = pytest.mark.unit


def test_every_phase_is_there_and_overlaps_count_whole() -> None:
    timeline = Timeline(started=100.0)
    timeline.add("cluster", 100.0, 110.0)
    timeline.add("ingest", 101.0, 104.0)
    timeline.add("ingest", 120.0, 121.0)
    timeline.add("engine_start", 110.0, 115.0, lane="replica-0")  # a replica's lane, not the job's
    seconds = timeline.seconds()
    assert set(seconds) == {
        "total", "ingest", "cluster", "weights", "engine_start", "inference", "finalise", "other",
    }  # fmt: skip
    assert (seconds["cluster"], seconds["ingest"], seconds["engine_start"]) == (10.0, 4.0, 0.0)
    assert seconds["other"] == 10.0  # from 110 to 120
    assert [(one.start, one.end) for one in timeline.phases() if one.name == "other"] == [(110.0, 120.0)]
    assert seconds["total"] == pytest.approx(time.time() - 100.0, abs=5)


def test_a_cluster_that_began_before_the_flow_is_in_the_total() -> None:
    timeline = Timeline(started=100.0)
    timeline.add("cluster", 96.0, 99.0)
    timeline.add("ingest", 102.0, 103.0)
    assert timeline.seconds()["other"] == 3.0  # Prefect's server, among others
    assert timeline.seconds()["total"] == pytest.approx(time.time() - 96.0, abs=2)


def test_phases_come_by_start_from_all_threads() -> None:
    timeline = Timeline()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: timeline.add("ingest", 50.0 - n, 60.0), range(50)))
    starts = [phase.start for phase in timeline.phases()]
    assert starts == sorted(starts)
    assert len(starts) == 50


def test_a_phase_that_fails_is_timed_too() -> None:
    timeline = Timeline()
    with pytest.raises(ValueError, match="x"), timeline.phase("finalise"):
        raise ValueError("x")
    [phase] = timeline.phases()
    assert phase.name == "finalise"
    assert 0 <= phase.seconds < 5
