"""The cluster of several nodes that tests use tells which actors and tasks are left on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.support.ray_workers import await_none
from tests.support.raylets import Raylets, Shape

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(180)]

LEAVING = """
import os
import sys
import ray

ray.init(address=sys.argv[1], namespace="jobs", log_to_driver=False)

@ray.remote(num_cpus=1)
class Left:
    def __init__(self):
        os.setpgid(0, os.getpgid(os.getppid()))
        os.setsid()  # else the kernel ends it with its raylet, when it stands still

    def here(self):
        return None

ray.get(Left.options(name="left", lifetime="detached").remote().here.remote())
"""
HEAD, NODE = 0, 1


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    found = Raylets(tmp_path_factory.mktemp("raylets"), 2, shape=Shape(head_cpus=0, cpus=1))
    yield found
    found.stop()


@pytest.fixture
def worker(raylets: Raylets) -> psutil.Process:
    """That of an actor which outlives the process that made it."""
    assert raylets.workers() == {}
    assert raylets.settings.address is not None
    command = [sys.executable, "-c", LEAVING, raylets.settings.address]
    subprocess.run(command, check=True, env={**os.environ, **raylets.environment}, timeout=60)
    (found,) = raylets.workers()
    return found


def test_an_actor_that_is_left_is_named_and_ended(raylets: Raylets, worker: psutil.Process) -> None:
    assert raylets in Raylets.running
    with pytest.raises(AssertionError, match=r"I7: actors or tasks are left .*ray::Left"):
        await_none(0.5, raylets.workers)
    worker.wait(10)


def test_a_worker_that_outlives_its_killed_node_is_named(raylets: Raylets, worker: psutil.Process) -> None:
    """It stands still, so that it does not hear of its raylet's end."""
    worker.suspend()
    raylets.kill(NODE)
    with pytest.raises(AssertionError, match="ray::Left"):
        await_none(2.0, raylets.workers)
    await_none(10.0, raylets.workers)
