"""SQLite takes writers from one machine; a replica's account is of the process that started."""

from __future__ import annotations

import socket

import pytest

from dray.cluster import ClusterInfo, Node
from dray.cluster.member import ReplicaStart
from dray.engine import EngineInfo, ReplicaStatus
from dray.engine.loop import LoopStats
from dray.errors import ConfigError
from tasks.cluster import RunningCluster, refuse_shared_sqlite

pytestmark = pytest.mark.unit


def _cluster(*stable: str, spot: str = "spot") -> ClusterInfo:
    hosts = [(host, True) for host in stable] + [(spot, False)]
    nodes = tuple(
        Node(node_id=str(number), host=host, cpus=1, gpus=0, stable=is_stable)
        for number, (host, is_stable) in enumerate(hosts)
    )
    return ClusterInfo(address="a", nodes=nodes, seconds=0.0, stable_resource="dray_stable")


@pytest.mark.parametrize("url", ["sqlite:////data/dray.db", "/data/dray.db", "jobs.sqlite3"])
def test_sqlite_with_stable_nodes_on_several_machines_is_refused(url: str) -> None:
    here = socket.gethostname()
    with pytest.raises(ConfigError, match=r"2 machines \(.*elsewhere.*\); use PostgreSQL"):
        refuse_shared_sqlite(url, _cluster(here, "elsewhere"))
    with pytest.raises(ConfigError, match="2 machines"):
        refuse_shared_sqlite(url, _cluster("elsewhere"))  # the flow itself writes too
    refuse_shared_sqlite(url, _cluster(here, here))  # two nodes, one machine
    refuse_shared_sqlite(url, _cluster(here))


def _start() -> ReplicaStart:
    info = EngineInfo(
        engine="vllm", version="0", model="m", max_num_seqs=1, max_model_len=9, timeline={"import": 2.0},
        weights=(90.0, 104.0),
    )  # fmt: skip
    return ReplicaStart(name="job/replica-0", began=100.0, process=101.0, ready=105.0, info=info)


def _status(began: float) -> ReplicaStatus:
    return ReplicaStatus(
        name="job/replica-0", node="n", pid=1, began=began, running=0, waiting=0, sessions=0, log=[],
        stats=LoopStats(finished=7, first_token_at=began + 5.0),
    )  # fmt: skip


def test_an_account_says_when_the_start_got_how_far() -> None:
    [account] = RunningCluster.accounts([_start()], {"job/replica-0": _status(101.0)})
    assert account.startup == {"import": 2.0}
    assert account.rows == 7
    moments = account.moments
    assert moments is not None
    assert (moments.asked, moments.began, moments.ready, moments.first_token) == (100, 101, 105, 106)
    assert moments.weights == (90, 104)


def test_a_first_token_of_a_replacement_is_not_told_as_that_of_the_start() -> None:
    [account] = RunningCluster.accounts([_start()], {"job/replica-0": _status(500.0)})
    [unseen] = RunningCluster.accounts([_start()], {})
    assert account.moments == unseen.moments
    assert account.moments is not None
    assert account.moments.first_token is None


def test_postgresql_may_have_several() -> None:
    refuse_shared_sqlite("postgresql://host/dray", _cluster("a", "b"))
