"""Between the fewest and the most replicas: when there are more, and when fewer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.driver.capacity.growth import Load, wanted
from dray.driver.capacity.policy import Situation
from dray.driver.capacity.work_left import Rate, work_of
from dray.store import Shard, ShardState

pytestmark = pytest.mark.unit

OPEN = ShardState.PENDING
NOW = Situation(left=10_000.0, rate=1.0, elapsed=0.0, deadline=None, cold_start=100.0, step=2.0, most=8)
BUSY = Load(waiting=40, running=2, replicas=1, ready=1, idle=0, unused=0, work=10_000.0)
TAIL = Load(waiting=0, running=1, replicas=4, ready=4, idle=3, unused=3, work=300.0)


@pytest.mark.parametrize(
    ("load", "change", "count"),
    [
        (BUSY, {}, 8),
        (replace(BUSY, ready=0), {}, None),  # what a start takes is not known
        (replace(BUSY, waiting=2), {}, 4),  # no replica is without a shard
        (BUSY, {"left": 3_000.0}, 3),  # starts may cost a tenth of what is left
        (BUSY, {"left": 150.0}, None),
        (BUSY, {"left": 150.0, "deadline": 200.0}, None),  # done before any machine comes
        (BUSY, {"left": 3_000.0, "deadline": 800.0}, 5),  # 600 s when two starts are over
        (BUSY, {"left": 3_000.0, "elapsed": 900.0, "deadline": 800.0}, 3),  # over: as without one
        (BUSY, {"most": 2}, 2),
        (replace(BUSY, replicas=8, ready=8), {}, None),
        (TAIL, {}, 2),
        (replace(TAIL, replicas=2, ready=2), {}, None),
        (replace(TAIL, unused=1), {}, 3),
        (replace(TAIL, unused=0), {}, None),  # no machine can be given back
        (replace(TAIL, waiting=1), {"left": 300.0}, None),
    ],
)
def test_how_many_are_wanted(load: Load, change: dict[str, Any], count: int | None) -> None:
    now = replace(NOW, **{"on_demand": load.ready, **change})
    wish = wanted(load, now, least=2 if load.replicas > 1 else 1)
    assert (wish.replicas if wish else None) == count


def test_reasons_say_what_was_weighed() -> None:
    wish = wanted(replace(BUSY, waiting=1, running=3), replace(NOW, deadline=5_000.0), least=1)
    assert wish is not None and wish.reason == (
        "1 shard waits, 2 h 47 min of one replica are left, a start takes 1 min 40 s, "
        "the deadline is in 1 h 23 min"
    )
    assert wanted(BUSY, None, least=1) is None  # nothing is known of the work
    wish = wanted(TAIL, None, least=2)
    assert wish is not None and wish.reason == "no shard waits, and 3 replicas had no work for a while"


def test_a_deadline_a_moment_away_asks_for_all_that_are_allowed() -> None:
    """Work over the time that is left is more than a float holds."""
    now = replace(NOW, left=1e6, cold_start=0.0, deadline=5e-324, most=6)
    wish = wanted(BUSY, now, least=1)
    assert wish is not None and wish.replicas == 6


@given(
    waiting=st.just(0) | st.integers(0, 999), running=st.integers(0, 99), replicas=st.integers(1, 64),
    ready=st.integers(0, 64), unused=st.integers(0, 64), work=st.floats(0, 1e6),
    least=st.integers(1, 64), more=st.integers(0, 64), start=st.floats(0, 1e4),
    deadline=st.none() | st.floats(0, 1e6),
)  # fmt: skip
def test_it_stays_within_the_limits(
    waiting: int, running: int, replicas: int, ready: int, unused: int, work: float,
    least: int, more: int, start: float, deadline: float | None,
) -> None:  # fmt: skip
    unused = min(unused, ready)
    load = Load(
        waiting=waiting, running=running, replicas=replicas, ready=ready, idle=unused, unused=unused,
        work=work,
    )  # fmt: skip
    now = replace(NOW, left=work, cold_start=start, deadline=deadline, most=least + more, on_demand=ready)
    wish = wanted(load, now, least=least)
    if wish is None:
        return
    assert wish.replicas != replicas
    assert wish.replicas >= least or wish.replicas > replicas
    assert wish.replicas <= least + more or wish.replicas < replicas


def test_a_shard_of_long_rows_is_more_work() -> None:
    short, long = _shard(0, rows=10, length=1_000), _shard(1, rows=10, length=80_000)
    work = work_of([short, long], now=0.0)
    assert work.left == 2 * 8_000 + 81_000
    half = replace(long, done=5, state=ShardState.LEASED, lease_until=9.0)
    ended = replace(short, done=9, failed=1, state=ShardState.DONE)
    work = work_of([ended, half, _shard(2, state=ShardState.SPLIT)], now=0.0)
    assert (work.left, work.waiting, work.running) == (44_000, 0, 1)
    assert work_of([half], now=10.0).waiting == 1  # its lease has lapsed


def test_a_split_makes_no_work_of_rows_that_are_done() -> None:
    """The parts of a shard have the outcomes that it had: they inherit those."""
    whole = replace(_shard(0, length=80_000), done=5, failed=1)
    parts = [replace(_shard(1, length=80_000), inherited=6), replace(whole, state=ShardState.SPLIT)]
    assert work_of(parts, now=0.0).left == work_of([whole], now=0.0).left == pytest.approx(0.4 * 88_000)


def test_a_rate_is_that_of_one_replica() -> None:
    rate = Rate(half_life=100.0)
    rate.look(1020.0, 0, 0.0)
    rate.look(1020.0, 2, 5.0)
    rate.look(1000.0, 2, 6.0)  # the first answers, of work that began some time before
    assert rate.units is None
    rate.look(900.0, 2, 16.0)
    assert rate.units == pytest.approx(5.0)
    for second in range(20, 2000, 10):
        rate.look(900.0 - second, 1, float(second))
    assert rate.units == pytest.approx(1.0, rel=0.05)


def _shard(number: int, *, rows: int = 10, length: int = 1_000, state: ShardState = OPEN) -> Shard:
    return Shard(
        number=number, uri="u", offset=0, length=length, rows=rows, first_position=0, inherited=0,
        state=state, epoch=0, owner=None, lease_until=None, parent=None, interruptions=0, crashes=0,
        replica=None, done=0, failed=0,
    )  # fmt: skip
