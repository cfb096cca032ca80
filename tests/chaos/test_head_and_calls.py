"""The head of the cluster is lost, calls between its processes fail, a node freezes as it is announced."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dray.store import JobState, open_store
from tests.support.chaos import Job
from tests.support.raylets import Raylets
from tests.support.spot_nodes import SpotNodes

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(600)]

SEQS = 16

RECONNECT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "20"}
"""Ray's processes end themselves when its control store is gone for so long; a minute by default."""

END_SECONDS = 60
"""For the driver to find out and end."""

FAILURES = json.dumps(
    {
        f"{service}.grpc_client.{call}": {
            "num_failures": 20,
            "req_failure_prob": 5,
            "resp_failure_prob": 5,
            "in_flight_failure_prob": 5,
        }
        for service, call in (
            ("CoreWorkerService", "PushTask"),
            ("NodeManagerService", "RequestWorkerLease"),
        )
    }
)
"""In each process up to 20 of each of these calls fail: not sent, while under way, or in their answers."""

FAILING = {
    "RAY_testing_rpc_failure": FAILURES,
    "RAY_testing_rpc_failure_avoid_intra_node_failures": "0",
}

LOSSES: dict[str, Callable[[Raylets], None]] = {
    "control store": Raylets.kill_gcs,
    "head node": lambda raylets: raylets.kill(0),
}


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[[], Raylets]]:
    """Clusters of a head and another node, a replica on each."""
    with ExitStack() as stack:

        def make() -> Raylets:
            found = Raylets(tmp_path / f"raylets-{time.monotonic_ns()}", 2, environment=RECONNECT)
            stack.callback(found.stop)
            return found

        yield make


@pytest.fixture
def spot_nodes(tmp_path: Path) -> Iterator[SpotNodes]:
    found = SpotNodes.beside_a_head(tmp_path / "raylets", 2)
    found.refill()
    yield found
    found.close()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_head_is_lost(loss: str, make_cluster: Callable[[], Raylets], tmp_path: Path) -> None:
    """The run ends and says how to go on; on another cluster the same command does."""
    raylets = make_cluster()
    job = Job(
        raylets=raylets,
        folder=tmp_path,
        rows=400,
        replicas=2,
        settings=(f"max_num_seqs={SEQS}", "seconds_per_token=0.05"),
        more=("--shard-rows", "50"),
        environment=RECONNECT,
    )
    run = job.start(PREFECT_API_URL="")  # with a server of its own, which must end too
    job.until_committed(run, 64)
    LOSSES[loss](raylets)
    lost = time.monotonic()
    ended = run.wait(END_SECONDS * 2)
    took = time.monotonic() - lost
    run.assert_nothing_left()
    assert ended.code == 1, ended.stderr
    assert ended.json["error"]["type"] == "JobPausedError", ended.stderr
    assert "dray resume" in ended.json["error"]["message"]
    assert "Traceback" not in ended.stderr
    assert took < END_SECONDS
    with open_store(job.store, create=False) as store:
        assert store.get_job("job").state is JobState.PAUSED
    before = job.committed()
    assert 64 <= before < job.rows
    job.raylets = make_cluster()
    figures = job.finished(job.start())
    print(f"{loss}: the run ended after {took:.1f} s with {before} rows committed; then {figures}")


def test_calls_that_fail(tmp_path: Path) -> None:
    """Ray makes them again, or dray its attempt; a row that came through twice counts once."""
    raylets = Raylets(tmp_path / "raylets", 2, environment=FAILING)
    try:
        job = Job(
            raylets=raylets,
            folder=tmp_path,
            rows=600,
            replicas=2,
            settings=(f"max_num_seqs={SEQS}", "seconds_per_token=0.02"),
            more=("--shard-rows", "30"),
            environment=FAILING,
        )
        figures = job.finished(job.start())
        print(f"failing calls: causes {job.causes() or 'none'}, budgets {job.budgets() or 'none'}; {figures}")
        assert job.causes() <= {"NODE_LOSS"}
        assert set(job.budgets()) <= {"infra", "node"}  # no engine is to blame
    finally:
        raylets.stop()


def test_a_node_that_hibernates_at_once(spot_nodes: SpotNodes, tmp_path: Path) -> None:
    """AWS begins at once when it says so: the notice and the end of all life there are one."""
    job = Job(
        raylets=spot_nodes.raylets,
        folder=tmp_path,
        rows=600,
        replicas=2,
        settings=(f"max_num_seqs={SEQS}", "seconds_per_token=0.05"),
        more=("--shard-rows", "60"),
    )
    run = job.start()
    node = job.node_at_work(run)
    spot_nodes.servers[node].interrupt("hibernate", seconds=0)
    run.until(lambda: bool(job.notices()), what="the notice")
    spot_nodes.raylets.signal(node, "STOP")
    frozen = time.monotonic()
    spot_nodes.forget(node)
    spot_nodes.refill()
    run.until(lambda: not job.leased_on(spot_nodes.raylets.nodes[node]), what="the shards given back")
    released = time.monotonic() - frozen
    figures = job.finished(run)
    print(f"hibernated: its shards were given back after {released:.1f} s; {figures}")
    assert job.causes() <= {"SPOT"}  # none where the replica gave its last row back before it froze
    assert job.charges() == []
    [notice] = job.notices()
    assert notice.action == "hibernate"
