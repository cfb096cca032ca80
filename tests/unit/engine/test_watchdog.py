"""When an engine counts as one that stands still, and when its whole process stood still."""

from __future__ import annotations

import pytest

from dray.engine.watchdog import Watchdog

pytestmark = pytest.mark.unit

STALL = 600.0


class Engine:
    """An engine that moved last at ``moved``, under a watchdog that looks once a second."""

    def __init__(self) -> None:
        self.now = self.moved = 0.0
        self.watchdog = Watchdog(STALL, 1.0)

    def look(self, after: float = 1.0) -> bool:
        self.now += after
        return self.watchdog.stands_still(self.now - self.moved, self.now)

    def ended_after(self, *pauses: float) -> int:
        """Looks at an engine that never moves, a second apart but for these pauses first."""
        for pause in pauses:
            assert not self.look(pause)
        looks = 1
        while not self.look():
            looks += 1
        return looks


def test_an_engine_that_never_moves_is_ended_in_time() -> None:
    assert Engine().ended_after() == STALL + 1


def test_a_process_that_was_stopped_is_no_engine_that_stands_still() -> None:
    engine = Engine()
    assert not engine.look()
    for _ in range(3):
        assert not engine.look(after=10 * STALL)
        engine.moved = engine.now  # a step ends soon after
        assert not engine.look()
    assert engine.ended_after() >= STALL - 1  # what was excused before counts no more


def test_an_engine_that_never_moves_is_ended_though_its_process_is_stopped_now_and_then() -> None:
    assert STALL - 50 < Engine().ended_after(1.0, 10 * STALL, 1.0, 10 * STALL) <= STALL + 1
    stuck = Engine()
    assert any(stuck.look(after=20.0) for _ in range(200))  # what holds the looks up may be the engine itself


def test_an_engine_without_work_never_stands_still() -> None:
    watchdog = Watchdog(STALL, 1.0)
    assert not any(watchdog.stands_still(None, now) for now in (0.0, 1.0, 10 * STALL))
