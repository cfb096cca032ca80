"""A replica on several nodes: whichever of its nodes or processes goes, another one goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.chaos import Job
from tests.support.followers import FOLLOWER, LEADER, processes_on
from tests.support.spot_nodes import SpotNodes

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SPOT = 3  # nodes beside the head, which has no room: two for the replica, and one to spare
ROWS = 1200


@pytest.fixture
def job(cloud: SpotNodes, tmp_path: Path) -> Job:
    return Job(
        raylets=cloud.raylets,
        folder=tmp_path,
        rows=ROWS,
        settings=("nnodes=2", "max_num_seqs=16", "seconds_per_token=0.02"),
        more=("--shard-rows", "200"),
    )


@pytest.mark.heavy
@pytest.mark.parametrize("titled", [LEADER, FOLLOWER], ids=["leader", "follower"])
def test_one_of_its_nodes_is_killed(titled: str, cloud: SpotNodes, job: Job) -> None:
    run = job.start()
    job.until_committed(run, 200)
    (node,) = _working(cloud, titled)
    cloud.kill(cloud.raylets.nodes.index(node))
    cloud.refill()
    print(job.finished(run))
    assert job.causes() == {"NODE_LOSS"}
    assert job.budgets() == {"infra": 1, "node": 1}
    assert {charge.scope for charge in job.charges() if charge.budget == "node"} == {node}
    _assert_none_left(cloud)


@pytest.mark.heavy
@pytest.mark.parametrize("titled", [LEADER, FOLLOWER], ids=["leader", "follower"])
def test_one_of_its_processes_is_killed(titled: str, cloud: SpotNodes, job: Job) -> None:
    run = job.start()
    job.until_committed(run, 200)
    ((node, process),) = _working(cloud, titled).items()
    process.kill()
    print(job.finished(run))
    assert job.causes() == {"ENGINE_CRASH"}
    assert {charge.scope for charge in job.charges() if charge.budget == "replica"} == {f"{node} replica-0"}
    _assert_none_left(cloud)


@pytest.mark.heavy
def test_a_notice_for_the_other_node_is_obeyed(cloud: SpotNodes, job: Job) -> None:
    run = job.start()
    job.until_committed(run, 200)
    (node,) = _working(cloud, FOLLOWER)
    cloud.announce(cloud.raylets.nodes.index(node))
    run.until(lambda: node not in _working(cloud, FOLLOWER, LEADER), 60, "the node to be left")
    cloud.kill(cloud.raylets.nodes.index(node))
    figures = job.finished(run)
    print(figures)
    assert job.causes() <= {"SPOT"}
    assert job.budgets() == {}
    assert [notice.node for notice in job.notices()] == [node]


@pytest.mark.heavy
def test_a_node_that_goes_while_the_replica_starts_fails_no_job(
    cloud: SpotNodes, job: Job, make_slow: Callable[[Job], Job]
) -> None:
    run = make_slow(job).start()
    run.until(lambda: bool(_working(cloud, FOLLOWER)), 120, "a follower")
    (node,) = _working(cloud, FOLLOWER)
    cloud.kill(cloud.raylets.nodes.index(node))
    cloud.refill()
    print(job.finished(run))
    _assert_none_left(cloud)


@pytest.fixture
def make_slow() -> Callable[[Job], Job]:
    def slow(job: Job) -> Job:
        job.settings = (*job.settings, "start_seconds=8")
        return job

    return slow


def _working(cloud: SpotNodes, *titles: str) -> dict[str, psutil.Process]:
    found: dict[str, psutil.Process] = {}
    for title in titles:
        found |= processes_on(cloud.raylets.nodes, title)
    return found


def _assert_none_left(cloud: SpotNodes) -> None:
    left = _working(cloud, LEADER, FOLLOWER)
    psutil.wait_procs(left.values(), timeout=10)
    assert not _working(cloud, LEADER, FOLLOWER)
