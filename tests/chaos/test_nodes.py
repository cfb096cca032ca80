"""Nodes that are lost, announced, drained or hang, on a real cluster of several raylets."""

from __future__ import annotations

import json
import math
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.chaos import Job, wait_for_release
from tests.support.command import prefect_api, write_requests
from tests.support.followers import FOLLOWER, processes_on
from tests.support.spot_nodes import SpotNodes

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SPOT = 2
"""Nodes beside the head; one replica each, and the head has none."""

SEQS = 16


@pytest.fixture
def make_job(cloud: SpotNodes, tmp_path: Path) -> Callable[..., Job]:
    def make(**changes: object) -> Job:
        values: dict[str, object] = {
            "rows": 1200,
            "replicas": SPOT,
            "settings": (f"max_num_seqs={SEQS}", "seconds_per_token=0.02"),
            "more": ("--shard-rows", "200"),
        }
        return Job(raylets=cloud.raylets, folder=tmp_path, **{**values, **changes})  # type: ignore[arg-type]

    return make


@pytest.mark.long
def test_a_node_that_is_killed_without_notice_is_charged_once(
    cloud: SpotNodes, make_job: Callable[..., Job]
) -> None:
    job = make_job()
    run = job.start()
    number = job.node_at_work(run)
    node = cloud.raylets.nodes[number]
    cloud.kill(number)
    cloud.refill()
    figures = job.finished(run)
    print(figures)
    assert job.causes() == {"NODE_LOSS"}
    assert job.budgets() == {"infra": 1, "node": 1}  # however many shards it took along
    assert 0 < figures.recomputed <= 3 * SEQS  # 1.2 times what the engine runs, and what was on its way back
    (event,) = told_of_node(node)  # once, however many shards it took along
    replica = event["payload"].pop("replica")
    assert replica in {f"replica-{lane}" for lane in range(SPOT)}
    assert event["payload"] == {"job_id": "job", "node": node, "cause": "NODE_LOSS"}
    related = {one["prefect.resource.role"]: one["prefect.resource.id"] for one in event["related"]}
    assert related["job"] == "dray.job.job"
    assert related["flow-run"].startswith("prefect.flow-run.")


def told_of_node(node: str) -> list[dict[str, Any]]:
    """The events ``dray.node.lost`` of a node at Prefect's server, which writes them a little later."""
    wanted = {"event": {"name": ["dray.node.lost"]}, "resource": {"id": [f"dray.node.{node}"]}}
    request = urllib.request.Request(
        f"{prefect_api()}/events/filter",
        data=json.dumps({"filter": wanted, "limit": 50}).encode(),
        headers={"Content-Type": "application/json"},
    )
    deadline = time.monotonic() + 30
    while True:
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["events"]
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


@pytest.mark.long
@pytest.mark.parametrize("bad", [{30}, {0, 59}], ids=["middle", "first and last"])
def test_rows_that_take_their_node_along_are_found_and_nothing_else_fails(
    bad: set[int], cloud: SpotNodes, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    """As rows do for which a container's memory does not suffice. Each lost node is replaced."""
    inputs = write_requests(tmp_path / "in.jsonl", 60, words=dict.fromkeys(bad, "HUGE"))
    job = make_job(
        rows=60,
        inputs=inputs,
        settings=("max_num_seqs=4", "seconds_per_token=0.005", "lose_node_on=HUGE"),
        environment={"DRAY_NO_WAIT": "1"},
        more=(),
    )
    run, lost = job.start(), 0
    while run.process.poll() is None:
        run.note_processes()
        lost += cloud.replace_lost()
        time.sleep(0.2)
    print(f"{lost} nodes lost by {len(bad)} rows;", job.finished(run))
    errors = [json.loads(line) for line in (job.output / "errors.jsonl").read_text().splitlines()]
    assert {(e["custom_id"], e["error"]["code"]) for e in errors} == {(f"row-{n}", "poison") for n in bad}
    assert lost <= len(bad) * (math.log2(2.5 * 4) + 8)  # docs/interruptions.md
    assert job.causes() <= {"NODE_LOSS", "POISON"}


@pytest.mark.heavy
def test_a_replica_on_several_nodes_goes_with_any_of_them(
    cloud: SpotNodes, make_job: Callable[..., Job]
) -> None:
    """The one that its process is not on: what that is charged to, and more, is in test_several_nodes.py."""
    settings = ("nnodes=2", f"max_num_seqs={SEQS}", "seconds_per_token=0.02")
    job = make_job(rows=300, replicas=1, settings=settings)
    run = job.start()
    job.until_committed(run, 30)
    (node,) = processes_on(cloud.raylets.nodes, FOLLOWER)
    cloud.kill(cloud.raylets.nodes.index(node))
    cloud.refill()
    print(job.finished(run))
    assert job.causes() == {"NODE_LOSS"}
    assert {charge.scope for charge in job.charges() if charge.budget == "node"} == {node}
    assert not processes_on(cloud.raylets.nodes, FOLLOWER)


@pytest.mark.long
def test_two_nodes_at_once(cloud: SpotNodes, make_job: Callable[..., Job]) -> None:
    job = make_job()
    run = job.start()
    job.node_at_work(run)
    job.until_committed(run, 300)
    for node in list(cloud.servers):
        cloud.kill(node)
    cloud.refill()
    print(job.finished(run))
    assert job.causes() == {"NODE_LOSS"}
    assert job.budgets() == {"infra": 2, "node": 2}


@pytest.mark.long
def test_a_notice_is_obeyed_in_time_and_charged_to_nobody(
    cloud: SpotNodes, make_job: Callable[..., Job]
) -> None:
    """Requests of up to 30 s are in flight: they cannot end in time, and are the only ones computed again."""
    job = make_job(
        rows=96,
        max_tokens=300,
        settings=(f"max_num_seqs={SEQS}", "seconds_per_token=0.1"),
        more=("--shard-rows", "16"),
    )
    run = job.start()
    run.until(lambda: len({line.pid for line in job.admitted()}) == SPOT, what="rows in all engines")
    node = next(number for number in cloud.servers if job.leased_on(cloud.raylets.nodes[number]))
    name = cloud.raylets.nodes[node]
    time.sleep(12)  # in the middle of a batch
    cloud.announce(node)
    took = wait_for_release(job, name, 30)
    print(f"from the notice to the last released shard: {took:.1f} s")
    assert took <= 15
    cloud.kill(node)
    cloud.refill()
    figures = job.finished(run, 400)
    print(figures)
    assert figures.recomputed <= SEQS * 1.2 + 1
    assert job.causes() == {"SPOT"}
    assert job.charges() == []
    [notice] = job.notices()
    assert (notice.node, notice.source, notice.action) == (name, "aws", "terminate")


@pytest.mark.long
def test_a_notice_that_lies(cloud: SpotNodes, make_job: Callable[..., Job]) -> None:
    """Nobody ends the node. It has been emptied all the same, and nothing was lost by that."""
    job = make_job()
    run = job.start()
    node = job.node_at_work(run)
    cloud.announce(node)
    took = wait_for_release(job, cloud.raylets.nodes[node], 30)
    assert took <= 15
    cloud.forget(node)  # Ray drains it: it is of no more use
    cloud.refill()
    figures = job.finished(run)
    print(f"{took:.1f} s", figures)
    assert figures.recomputed == 0  # all that was in flight came out
    assert job.causes() == {"SPOT"}
    assert job.charges() == []


@pytest.mark.long
def test_a_kill_before_the_deadline_of_a_notice(cloud: SpotNodes, make_job: Callable[..., Job]) -> None:
    """The drain is under way: whatever breaks off is the notice's doing."""
    job = make_job(max_tokens=100)  # 2 s a request
    run = job.start()
    node = job.node_at_work(run)
    cloud.announce(node, seconds=20)
    run.until(lambda: bool(job.notices()), what="the notice")
    cloud.kill(node)
    cloud.refill()
    print(job.finished(run))
    assert job.causes() == {"SPOT"}
    assert job.charges() == []


@pytest.mark.long
def test_a_notice_while_the_model_loads(cloud: SpotNodes, make_job: Callable[..., Job]) -> None:
    job = make_job(settings=(f"max_num_seqs={SEQS}", "seconds_per_token=0.02", "start_seconds=8"))
    run = job.start()
    run.until(lambda: len(job.replicas_now()) == SPOT, what="replicas that start")
    node = min(cloud.servers)
    cloud.announce(node, seconds=60)
    run.until(lambda: bool(job.notices()), what="the notice")
    cloud.kill(node)
    cloud.refill()
    print(job.finished(run))
    assert job.causes() == set()
    assert job.charges() == []


@pytest.mark.long
def test_a_node_that_ray_drains(cloud: SpotNodes, make_job: Callable[..., Job]) -> None:
    """By its autoscaler, or ``ray start`` after a SIGTERM: no cloud says anything."""
    job = make_job()
    run = job.start()
    node = job.node_at_work(run)
    cloud.raylets.drain(node, 30)
    took = wait_for_release(job, cloud.raylets.nodes[node], 30)
    cloud.kill(node)
    cloud.refill()
    print(f"{took:.1f} s", job.finished(run))
    assert took <= 15
    assert job.causes() == {"SPOT"}
    assert job.charges() == []


@pytest.mark.long
def test_a_node_that_hangs_and_comes_back(cloud: SpotNodes, make_job: Callable[..., Job]) -> None:
    """Its rows are run elsewhere; what it says when it wakes is heard by nobody."""
    job = make_job()
    run = job.start()
    node = job.node_at_work(run)
    cloud.raylets.signal(node, "STOP")
    cloud.forget(node)
    cloud.refill()
    lost = job.leased_on(cloud.raylets.nodes[node])
    run.until(lambda: not job.leased_on(cloud.raylets.nodes[node]), what="the shards given back")
    cloud.raylets.signal(node, "CONT")
    figures = job.finished(run)
    print(lost, figures)
    assert job.causes() == {"NODE_LOSS"}
    assert job.budgets() == {"infra": 1, "node": 1}
