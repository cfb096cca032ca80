"""The worker without a core of its own waits for idle cores, and not for ever."""

from __future__ import annotations

import itertools
import os

import pytest

from tests.support.spare_worker import IDLE_CORES, LOOKS_EVERY, PATIENCE, SpareWorker, spare_worker

pytestmark = pytest.mark.unit


class Machine:
    """A clock, and idle cores second by second."""

    def __init__(self, *idle: float) -> None:
        self.now = 1000.0
        self.idle = itertools.chain(idle, itertools.repeat(idle[-1]))

    def look(self) -> float:
        self.now += 1
        return next(self.idle)

    def gate(self) -> SpareWorker:
        return SpareWorker(self.look, lambda: self.now)


def test_it_waits_until_enough_is_idle() -> None:
    assert Machine(0.1, IDLE_CORES - 0.1, 0.2, IDLE_CORES, 0.1).gate().wait() == 4


def test_short_tests_share_a_look() -> None:
    machine = Machine(1.5)
    gate = machine.gate()
    assert [gate.wait() for _ in range(3)] == [1, 0, 0]
    machine.now += LOOKS_EVERY
    assert gate.wait() == 1


def test_a_machine_that_stays_busy_is_used_in_the_end() -> None:
    assert Machine(0.0).gate().wait() == PATIENCE


def test_only_workers_beyond_the_cores_wait() -> None:
    cores = len(os.sched_getaffinity(0))
    assert spare_worker(None) is None
    assert spare_worker(f"gw{cores - 1}") is None
    assert isinstance(spare_worker(f"gw{cores}"), SpareWorker)
