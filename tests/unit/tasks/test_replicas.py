"""The line of a replica's start says what took time."""

from __future__ import annotations

import pytest

from dray.cluster.member import ReplicaStart
from dray.engine import EngineInfo
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
