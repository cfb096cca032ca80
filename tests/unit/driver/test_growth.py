"""Between the fewest and the most replicas: when there are more, and when fewer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.driver.growth import Load, wanted
from dray.driver.work_left import Rate, work_of
from dray.store import Shard, ShardState

pytestmark = pytest.mark.unit

OPEN = ShardState.PENDING
BUSY = Load(waiting=40, running=2, replicas=1, ready=1, idle=0, work=10_000.0)
TAIL = Load(waiting=0, running=1, replicas=4, ready=4, idle=3, work=300.0)


@pytest.mark.parametrize(
    ("load", "count"),
    [
        (BUSY, 8),
        (replace(BUSY, ready=0), None),  # what a start takes is not known
        (replace(BUSY, work=None), None),
        (replace(BUSY, waiting=2), 4),  # no replica is without a shard
        (replace(BUSY, work=700.0), 3),  # 700 s: a third start of 100 s still pays
        (replace(BUSY, work=150.0), None),
        (replace(BUSY, replicas=8, ready=8), None),
        (TAIL, 2),
        (replace(TAIL, replicas=2, ready=2), None),
        (replace(TAIL, idle=1), 3),
        (replace(TAIL, work=50.0), None),  # done before any machine goes
        (replace(TAIL, waiting=1), None),
    ],
)
def test_how_many_are_wanted(load: Load, count: int | None) -> None:
    wish = wanted(load, least=2, most=8, start_seconds=100.0)
    assert (wish.replicas if wish else None) == count


@given(
    waiting=st.integers(0, 999), running=st.integers(0, 99), replicas=st.integers(1, 64),
    ready=st.integers(0, 64), idle=st.integers(0, 64), work=st.none() | st.floats(0, 1e6),
    least=st.integers(1, 64), more=st.integers(0, 64), start=st.floats(0, 1e4),
)  # fmt: skip
def test_it_stays_within_the_limits(
    waiting: int, running: int, replicas: int, ready: int, idle: int, work: float | None,
    least: int, more: int, start: float,
) -> None:  # fmt: skip
    load = Load(
        waiting=waiting, running=running, replicas=replicas, ready=ready, idle=min(idle, ready), work=work
    )
    wish = wanted(load, least=least, most=least + more, start_seconds=start)
    if wish is None:
        return
    assert wish.replicas != replicas
    assert wish.replicas >= least or wish.replicas > replicas
    assert wish.replicas <= least + more or wish.replicas < replicas


def test_a_shard_of_long_rows_is_more_work() -> None:
    short, long = _shard(0, rows=10, length=1_000), _shard(1, rows=10, length=80_000)
    work = work_of([short, long], now=0.0)
    assert work.total == work.left == 2 * 8_000 + 81_000
    half = replace(long, done=5, state=ShardState.LEASED, lease_until=9.0)
    ended = replace(short, done=9, failed=1, state=ShardState.DONE)
    work = work_of([ended, half, _shard(2, state=ShardState.SPLIT)], now=0.0)
    assert (work.left, work.waiting, work.running) == (44_000, 0, 1)
    assert work_of([half], now=10.0).waiting == 1  # its lease has lapsed


def test_a_rate_is_that_of_one_replica() -> None:
    rate = Rate(half_life=100.0)
    rate.look(1000.0, 0, 0.0)
    assert rate.units is None
    rate.look(900.0, 2, 10.0)
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
