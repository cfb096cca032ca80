"""The lines of events: what people read of replicas, nodes and the store."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster.asking import ReplicaResources
from dray.driver.events import Outlook, ReplicaLogged, ReplicaReady, ReplicasWait
from dray.driver.replicas.handle import ReplicaStart
from dray.driver.telling.wording import plan_line
from dray.engine.protocol import EngineInfo

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
    start = ReplicaStart(
        name="job/replica-0", began=100.0, placed=100.0, process=100.5, ready=106.24, info=info
    )
    assert ReplicaReady(start=start).text == f"replica-0 ready after 6.2 s{told}"


def test_of_a_replicas_log_people_read_what_is_no_detail() -> None:
    detail = ReplicaLogged(name="job/replica-0", severity=logging.DEBUG, logger="vllm", message="m")
    assert detail.text is None
    warning = ReplicaLogged(name="job/replica-0~2", severity=logging.WARNING, logger="vllm", message="m")
    assert warning.text == "[replica-0] vllm: m"
    assert replace(warning, logger="dray.engine.loop").text == "[replica-0] m"


def test_the_end_of_a_wait_is_told_too() -> None:
    assert ReplicasWait(reason="1 of 2 replicas wait").text == "1 of 2 replicas wait"
    assert ReplicasWait(reason=None).text == "no replica waits for a place any more"


@pytest.mark.parametrize(
    ("outlook", "told"),
    [
        (
            Outlook(seconds_left=7200, deadline_in=6600, dollars_left=None, budget_left=None),
            "the rest takes 2 h as things are, 10 min too long for the deadline",
        ),
        (
            Outlook(seconds_left=600, deadline_in=6600, dollars_left=3.5, budget_left=3.0),
            "the rest takes 10 min as things are, in time for the deadline, and costs $3.50, "
            "$0.50 over the budget",
        ),
        (
            Outlook(seconds_left=600, deadline_in=None, dollars_left=3.5, budget_left=4.0),
            "the rest takes 10 min as things are, and costs $3.50, within the budget",
        ),
    ],
)
def test_what_will_be_met_is_said(outlook: Outlook, told: str) -> None:
    assert outlook.text == told


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
    pool: Any = SimpleNamespace(lanes=2, ask=ask)
    assert plan_line(pool, wanted) == told


def test_the_log_says_for_how_many_machines_replicas_wait() -> None:
    pool: Any = SimpleNamespace(lanes=4, ask=ReplicaResources(cpus=1, gpus=1))
    assert plan_line(pool, None, unjoined=3) == (
        "starting 4 replicas, each with 1 GPU and 1 CPU, for the GPUs that are there now and those of "
        "3 machines still to come; --replicas asks for more"
    )
    assert plan_line(pool, 4, unjoined=3) == "starting 4 replicas, each with 1 GPU and 1 CPU"
