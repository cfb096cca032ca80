"""This machine as a node of a rented cluster: it lives for as long as a driver on this machine holds it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.cluster import ClusterSettings, member, own_node
from dray.cluster.connect import RayCluster
from dray.cluster.member import nodes_joined, stable_hosts
from dray.cluster.ray_private import auth_variables, enable_token_auth, nodes_at, nodes_here, restore_auth
from dray.errors import ConfigError
from tests.support.raylets import Raylets
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[3]
DRIVER = """
import sys
from tests.integration.cluster.test_own_node import join
node = join(*sys.argv[1:])
print("joined", flush=True)
sys.stdin.readline()
node.stop()
"""


def join(address: str, head: str) -> own_node.OwnNode:
    """As a driver does it whose machine is not the head's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_node, "nodes_here", lambda address: nodes_here(address) - {head})
        return own_node.join_as_node(address)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, str]]:
    """Its address, and its head's node."""
    before = auth_variables()
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        raylets = Raylets(Path(folder), 1)
        enable_token_auth(raylets.settings.auth_token)
        yield str(raylets.settings.address), raylets.nodes[0]
        restore_auth(before)
        raylets.stop()
        own_node.lock_of(str(raylets.settings.address)).unlink(missing_ok=True)


@pytest.fixture
def own_tmp() -> Iterator[str]:
    """A short name: Ray's sockets are below it."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield folder


@pytest.mark.parametrize("killed", [False, True])
def test_a_node_that_two_drivers_hold_ends_with_the_second(
    killed: bool, cluster: tuple[str, str], own_tmp: str
) -> None:
    """Each has a folder of its own for temporary files."""
    address, head = cluster
    command = [sys.executable, "-c", DRIVER, address, head]
    first = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": own_tmp},
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "joined\n"
    both = {one.node_id for one in nodes_at(address)}
    assert len(both) == 2
    second = join(address, head)
    assert second._process is None
    if killed:
        first.kill()
    first.communicate("leave\n" if not killed else None, timeout=20)  # it does not wait for the second one
    with pytest.raises(AssertionError):
        until(lambda: {one.node_id for one in nodes_at(address)} != both, seconds=3)
    second.stop()
    until(lambda: {one.node_id for one in nodes_at(address)} == {head})


def test_a_driver_alone_waits_for_the_end_of_its_node(cluster: tuple[str, str]) -> None:
    address, head = cluster
    node = join(address, head)
    assert len(nodes_at(address)) == 2
    assert node._process is not None
    node.stop()
    assert node._process.poll() is not None
    until(lambda: {one.node_id for one in nodes_at(address)} == {head})


def test_the_nodes_of_a_cluster_are_known_before_it_is_joined(
    cluster: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, head = cluster
    [found] = nodes_joined(address)
    monkeypatch.setenv("RAY_ADDRESS", address)  # as Ray gives it to what `dray cluster submit` runs
    assert [one.node_id for one in nodes_joined("auto")] == [head]
    assert (found.node_id, found.head, found.marked) == (head, True, True)
    assert stable_hosts([found]) == {socket.gethostname()}


def test_a_cluster_of_which_this_machine_is_no_node_is_refused_at_once(
    cluster: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray looked for a node of this machine for a minute, and found no node info "matching attributes"."""
    address, _ = cluster
    monkeypatch.setattr(member, "START_SECONDS", 0.0)
    for here in (set[str](), {"of another cluster"}):
        monkeypatch.setattr(member, "node_ids_here", lambda here=here: here)
        joining = RayCluster(ClusterSettings(address=address))
        with pytest.raises(ConfigError, match=f"--address={address} --num-cpus=0 --num-gpus=0` here first"):
            joining.wait()
        joining.leave()


def test_a_head_that_wants_another_token_is_left_to_the_joining(cluster: tuple[str, str]) -> None:
    program = "import sys; from dray.cluster.member import nodes_joined; print(nodes_joined(sys.argv[1]))"
    ended = subprocess.run(
        [sys.executable, "-c", program, cluster[0]],
        cwd=ROOT,
        env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.stdout == "()\n", ended.stderr
