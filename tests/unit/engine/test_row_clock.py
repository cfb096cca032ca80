"""Row seconds are those of rows that finished, that were dropped, and that are in the engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engine.loop_stats import LoopStats, RowClock

pytestmark = pytest.mark.unit

step = st.tuples(st.just("step"), st.floats(0.001, 5))
events = st.lists(
    st.one_of(step, st.tuples(st.sampled_from(["enter", "answer", "drop"]), st.integers(0, 5))), max_size=60
)


@given(events)
def test_they_add_up(events: list[tuple[str, float]]) -> None:
    stats = LoopStats()
    clock = RowClock(stats)
    inside: dict[float, float] = {}
    answered = 0.0
    for what, which in events:
        if what == "step":
            clock.step(which)
            inside = {key: spent + which for key, spent in inside.items()}
        elif what == "enter" and which not in inside:
            clock.enter(int(which))
            inside[which] = 0.0
        elif what in ("answer", "drop"):
            clock.leave(int(which), answered=what == "answer")
            spent = inside.pop(which, 0.0)
            answered += spent if what == "answer" else 0.0
    assert stats.steps == sum(what == "step" for what, _ in events)
    assert stats.answered_seconds == pytest.approx(answered)
    assert stats.row_seconds >= stats.answered_seconds - 1e-9
    for key in list(inside):
        clock.leave(int(key), answered=False)
    assert stats.answered_seconds == pytest.approx(answered)
