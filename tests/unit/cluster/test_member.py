"""How long a driver waits for the node of its machine: as Ray does, where it is being started."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dray.cluster import member
from dray.cluster.member import nodes_joined
from dray.cluster.ray_private import FoundNode
from dray.errors import ConfigError

pytestmark = pytest.mark.unit

ADDRESS = "10.77.0.5:6379"
NODE = FoundNode(
    node_id="a", address="10.77.0.9", host="here", head=False, marked=False, draining=False, resources={}
)


@contextmanager
def running(*command: str) -> Iterator[None]:
    """A process of that command line, as others see it, which only waits."""
    program = "print('up', flush=True); import sys; sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


@pytest.fixture
def node_in(monkeypatch: pytest.MonkeyPatch) -> float:
    """A node of this machine is there after so many seconds, which is longer than most starts take."""
    seconds, began = 1.0, time.monotonic()

    def here() -> set[str]:
        return {NODE.node_id} if time.monotonic() - began > seconds else set()

    monkeypatch.setattr(member, "START_SECONDS", 0.2)
    monkeypatch.setattr(member, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(member, "node_ids_here", here)
    monkeypatch.setattr(member, "listens", lambda address: True)
    monkeypatch.setattr(member, "nodes_at", lambda address: [NODE])
    return seconds


@pytest.mark.parametrize(
    "command",
    [
        ["/opt/venv/bin/ray", "start", f"--address={ADDRESS}", "--block"],
        ["-m", "ray.scripts.scripts", "start", "--address", ADDRESS],
        ["/opt/ray/core/src/ray/raylet/raylet", f"--gcs-address={ADDRESS}"],
    ],
)
def test_a_node_that_is_being_started_has_the_time_that_ray_gives_it(
    command: list[str], node_in: float
) -> None:
    """`ray start --address=HOST & dray run --cluster HOST`: on a cold disk that took more than 5 s."""
    with running(*command):
        assert nodes_joined(ADDRESS) == [NODE]


@pytest.mark.parametrize(
    "command",
    [
        ["/opt/venv/bin/ray", "start", "--address=10.77.0.6:6379", "--block"],
        ["/opt/venv/bin/ray", "start", "--head", "--port=6379"],
        ["/opt/venv/bin/dray", "run", "in.jsonl", f"--cluster={ADDRESS}"],
    ],
)
def test_where_none_is_being_started_the_wait_is_short(command: list[str], node_in: float) -> None:
    with running(*command), pytest.raises(ConfigError, match="this machine is no node of it"):
        nodes_joined(ADDRESS)


def test_a_start_that_hangs_is_refused_in_the_end(node_in: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "RAYS_SECONDS", 0.5)
    with (
        running("ray", "start", f"--address={ADDRESS}"),
        pytest.raises(ConfigError, match="is no node of it"),
    ):
        nodes_joined(ADDRESS)
