"""One agent a node: each chunk from the origin about once for all nodes, and the rest from each other."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from dray.cluster import ClusterInfo, open_cluster
from dray.cluster import agents as node_agents
from dray.cluster.agents import NodeAgents
from dray.weights import read_manifest
from dray.weights.node.agent import Agent
from dray.weights.node.local import ModelProgress
from dray.weights.source.manifest import Manifest
from dray.weights.source.publish import publish
from tests.support.raylets import Raylets
from tests.support.s3_emulator import EmulatorProcess
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(300)]

NODES = 4
SHARDS = 2
CHUNK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    found = Raylets(tmp_path_factory.mktemp("raylets"), NODES)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def cluster(raylets: Raylets) -> Iterator[ClusterInfo]:
    joined = open_cluster(raylets.settings)
    joined.start()
    yield joined.wait()
    joined.release()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    found = EmulatorProcess(tmp_path_factory.mktemp("origin"))
    yield found
    found.stop()


def _model(server: EmulatorProcess, name: str, seed: int, *, published: bool = True) -> Manifest:
    """A model of 80 MB in two files, of which no test has the bytes yet; chunks of 1 MB."""
    folder = server.root / "bucket" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    numbers = np.random.default_rng(seed)
    for shard in range(SHARDS):
        tensors = {f"layer.{shard}": numbers.random((10_000, 1000), np.float32)}
        save_file(tensors, folder / f"model-{shard}.safetensors")
    if published:
        publish(str(folder), chunk_bytes=CHUNK_BYTES)
    server.behave()
    found = read_manifest(f"s3://bucket/{name}", server.options)
    return found if published else replace(found, chunk_bytes=CHUNK_BYTES)


def _fetched(agents: NodeAgents, count: int, seconds: float = 60) -> list[ModelProgress]:
    deadline = time.monotonic() + seconds
    while True:
        found = agents.look()
        assert not [node.failure for node in found if node.failure]
        if len(found) == count and all(node.ready == node.size for node in found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def _same(raylets: Raylets, server: EmulatorProcess, manifest: Manifest, nodes: range) -> None:
    name = manifest.uri.rsplit("/", 1)[-1]
    for node in nodes:
        folder = raylets.cache(node) / manifest.key
        deadline = time.monotonic() + 20
        while not folder.is_dir():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for file in manifest.files:
            assert (folder / file.name).read_bytes() == (
                server.root / "bucket" / name / file.name
            ).read_bytes()


@pytest.mark.parametrize("published", [True, False])
def test_nodes_that_start_together_read_the_origin_once(
    published: bool, raylets: Raylets, cluster: ClusterInfo, server: EmulatorProcess
) -> None:
    manifest = _model(server, f"together-{published}", seed=1 + published, published=published)
    server.behave(connection_rate=20e6, first_byte_seconds=0.02)
    agents = NodeAgents(manifest, server.options, "job-1")
    found = _fetched(agents, NODES)
    ratio = sum(server.served().values()) / manifest.size
    print(f"{NODES} nodes: origin served {ratio:.2f} models")
    assert ratio <= 2.0
    assert sum(node.from_peers or 0 for node in found) > manifest.size
    _same(raylets, server, manifest, range(NODES))
    agents.drop(remove=True)
    assert not (raylets.cache(0) / manifest.key).exists()


def test_an_agent_that_is_killed_comes_back_and_goes_on(
    raylets: Raylets, cluster: ClusterInfo, server: EmulatorProcess
) -> None:
    manifest = _model(server, "killed", seed=5)
    server.behave(node_rate=40e6)
    agents = NodeAgents(manifest, server.options, "job-2")
    until(lambda: any(node.ready for node in agents.look()))
    for actor in list(agents._actors.values())[:2]:
        os.kill(_asked(actor.pid.remote()), signal.SIGKILL)
    _fetched(agents, NODES)
    _same(raylets, server, manifest, range(NODES))
    agents.drop(remove=True)


def test_a_model_that_is_warm_costs_the_origin_nothing(
    raylets: Raylets, cluster: ClusterInfo, server: EmulatorProcess
) -> None:
    manifest = _model(server, "warm", seed=6)
    first = NodeAgents(manifest, server.options, "job-3")
    _fetched(first, NODES)
    first.drop(remove=False)
    server.behave()
    second = NodeAgents(manifest, server.options, "job-4")
    _fetched(second, NODES)
    second.drop(remove=True)
    assert server.served() == {}


def _asked(reference: Any) -> Any:
    import ray

    return ray.get(reference)


def test_who_does_not_know_the_token_gets_nothing(cluster: ClusterInfo, server: EmulatorProcess) -> None:
    import urllib.error
    import urllib.request

    manifest = _model(server, "token", seed=7)
    agents = NodeAgents(manifest, server.options, "job-5")
    _fetched(agents, NODES)
    peer = _asked(next(iter(agents._actors.values())).peer.remote())
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(
                urllib.request.Request(f"{peer.url}/{manifest.key}/marks", headers=headers)
            )
        assert refused.value.code == 403
    assert peer.token not in repr(peer)
    agents.drop(remove=True)


def test_every_node_has_its_own_folder(raylets: Raylets) -> None:
    assert len({str(raylets.cache(node)) for node in range(NODES)}) == NODES
    assert all(Path(raylets.cache(node)).is_dir() for node in range(NODES))


def test_agents_without_a_driver_end_and_begin_anew_for_one_that_stood_still(
    raylets: Raylets, cluster: ClusterInfo, server: EmulatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that SIGKILL ends drops nothing: its agents hear no more of it.

    One that was stopped for as long kept the handles of agents that were dead for good.
    """
    monkeypatch.setattr(node_agents, "_PREFIX", "impatient-agent/")  # not those of the other tests
    monkeypatch.setattr(node_agents, "IDLE_SECONDS", 8.0)
    monkeypatch.setattr(node_agents, "HOLD_SECONDS", 4.0)
    manifest = _model(server, "orphan", seed=10)
    held = NodeAgents(manifest, server.options, "job-7")
    _fetched(held, NODES)
    pids = {_asked(actor.pid.remote()) for actor in held._actors.values()}
    assert len(pids) == NODES
    until(lambda: not any(map(psutil.pid_exists, pids)), 40)
    held.look()
    _fetched(held, NODES)
    assert not pids & {_asked(actor.pid.remote()) for actor in held._actors.values()}
    held.drop(remove=True)


def test_a_holder_that_asks_no_more_is_dropped(server: EmulatorProcess) -> None:
    manifest = _model(server, "leased", seed=11)
    agent = Agent("node", "127.0.0.1")
    try:
        agent.hold(manifest, server.options, "dead")
        time.sleep(0.2)
        agent.hold(manifest, server.options, "alive")
        agent.lapse(0.1)
        assert not agent.idle()  # one holder is left
        agent.drop("alive")
        assert agent.idle()
        agent.hold(manifest, server.options, "stopped")
        time.sleep(0.2)
        agent.lapse(0.1)
        assert agent.idle()
        assert agent.hold(manifest, server.options, "stopped").failure is None  # it goes on, and has it anew
        assert not agent.idle()
    finally:
        agent.close(remove=True)


def test_agents_follow_the_nodes_that_join_and_die(
    raylets: Raylets, cluster: ClusterInfo, server: EmulatorProcess
) -> None:
    """Last: it changes the cluster. Nobody waits for a dead node, and a new one gets the model too."""
    manifest = _model(server, "follow", seed=8)
    agents = NodeAgents(manifest, server.options, "job-6")
    _fetched(agents, NODES)
    gone = raylets.nodes[NODES - 1]
    raylets.kill(NODES - 1)
    raylets.add()
    found = _fetched(agents, NODES)
    while gone in {node.node for node in found}:  # until Ray has noticed
        found = _fetched(agents, NODES)
    assert {node.node for node in found} == set(raylets.nodes) - {gone}
    began = time.monotonic()
    agents.drop(remove=True)
    assert time.monotonic() - began < 5  # seconds; a call to a dead node would wait for 20


def test_a_node_without_room_says_so(server: EmulatorProcess) -> None:
    manifest = _model(server, "huge", seed=9)
    vast = replace(manifest, files=(replace(manifest.files[0], size=1 << 42),))
    agent = Agent("node", "127.0.0.1")
    try:
        found = agent.hold(vast, server.options, "job-7")
        assert found.failure is not None
        assert found.ready == 0
        assert agent.idle()
    finally:
        agent.close(remove=False)
