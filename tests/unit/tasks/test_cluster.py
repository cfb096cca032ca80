"""SQLite takes writers from one machine."""

from __future__ import annotations

import socket

import pytest

from dray.cluster import ClusterInfo, Node
from dray.errors import ConfigError
from tasks.cluster import refuse_shared_sqlite

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


def test_postgresql_may_have_several() -> None:
    refuse_shared_sqlite("postgresql://host/dray", _cluster("a", "b"))
