"""What runs shards: Prefect's tasks, or plain Ray's where their nodes cannot reach Prefect's server."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from prefect import get_run_logger
from prefect.client.orchestration import get_client

from dray.cluster import ClusterInfo
from dray.cluster.auth import is_loopback
from dray.driver.executor import Executor
from dray.driver.ray_executor import RayExecutor
from dray.storage.addresses import without_secret
from tasks.prefect_executor import PrefectExecutor

_ADVICE = "to see them there, set PREFECT_API_URL to an address of the server that those machines reach"


def executor_for(cluster: ClusterInfo) -> Executor:
    """Prefect's tasks, unless all shard tasks run on other machines than this, and Prefect's server is here.

    A Prefect task tells the server its states and log lines itself. At ``127.0.0.1`` of another machine no
    server answers: the run's page would show no shard, and each attempt would end seconds late.
    """
    with get_client(sync_client=True) as client:
        url = without_secret(str(client.api_url))
    beyond = cluster.stable_hosts - {socket.gethostname()}
    if not beyond or not _is_of_this_machine(url):
        return PrefectExecutor()
    told = f"Prefect's server is at {url}, which other machines ({_some(beyond)}) do not reach"
    if beyond != cluster.stable_hosts:
        get_run_logger().warning("%s: this run's page does not show shard tasks there; %s", told, _ADVICE)
        return PrefectExecutor()
    get_run_logger().info("%s: shard tasks run without Prefect, not on this run's page; %s", told, _ADVICE)
    return RayExecutor()


def _some(hosts: frozenset[str]) -> str:
    return ", ".join(sorted(hosts)[:3]) + (", ..." if len(hosts) > 3 else "")


def _is_of_this_machine(url: str) -> bool:
    """Whether the address means the machine that uses it."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_unspecified or is_loopback(host)
    except ValueError:  # a name
        return is_loopback(host)
