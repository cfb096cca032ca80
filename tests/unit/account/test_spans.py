"""Each moment of each place of a node is in one span, whatever became of its replicas."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.account import PARTS, Life, NodeBill, Phase, Span, account_of, closing, part_of, spans_of
from dray.account.bill import exact, whole

pytestmark = pytest.mark.unit

moments = st.floats(0, 5000, allow_nan=False)
amounts = st.floats(0, 1e4, allow_nan=False)
maybe = st.one_of(st.none(), moments)
NOW = 4000.0


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    """Replicas in any order of moments, also such as no clock should give."""
    return [
        Life(
            name=f"job/1/replica-{number}",
            asked=draw(moments),
            node=draw(st.sampled_from(["a", "b", None])),
            gpus=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
            process=draw(maybe),
            ready=draw(maybe),
            leaving=draw(maybe),
            ended=draw(maybe),
            lost=draw(st.booleans()),
            successor=draw(st.booleans()),
            weights=draw(st.one_of(st.none(), st.tuples(moments, moments))),
            looked=draw(maybe),
            busy=draw(amounts),
            row_seconds=draw(amounts),
            answered_seconds=draw(amounts),
            running=draw(st.integers(0, 300)),
            finished=draw(st.integers(0, 300)),
            committed=draw(st.integers(0, 300)),
        )
        for number in range(draw(st.integers(1, 6)))
    ]


facts = st.builds(
    NodeBill,
    began=st.floats(0, 100),
    ended=st.one_of(st.none(), st.floats(0, 4000)),
    gpus=st.sampled_from([0.0, 1.0, 8.0]),
    price=st.integers(0, 10**9),
)


@given(lives(), facts, facts)
def test_the_parts_sum_to_node_seconds_times_price_exactly(
    some: list[Life], first: NodeBill, second: NodeBill
) -> None:
    nodes = {"a": first, "b": second}
    spans = spans_of(some, nodes, epoch=1, now=NOW)
    seconds = Fraction(0)
    dollars = Fraction(0)
    for node in {life.node for life in some} - {None}:
        one = nodes[str(node)]
        micros = max(0, round(max(0.0, (NOW if one.ended is None else one.ended) - one.began) * 1e6))
        seconds += micros
        dollars += Fraction(micros * (one.price or 0), 3600 * 10**6)
    assert all(span.micros > 0 for span in spans)
    found = exact(spans)
    assert sum(found.micros.values(), Fraction()) == seconds
    bill = account_of(spans)
    assert sum(part.micros for part in bill.parts) == bill.node_micros == round(seconds)
    if spans:
        assert found.dollars is not None
        assert sum(found.dollars.values(), Fraction()) == dollars
        assert sum(part.dollars_micros or 0 for part in bill.parts) == bill.dollars_micros == round(dollars)
        told = bill.as_dict()
        assert round(sum(told["parts"].values()), 6) == told["dollars"]
        assert round(sum(told["seconds"].values()), 6) == told["node_seconds"]


@given(st.dictionaries(st.text(max_size=3), st.fractions(0, 10**6), max_size=6))
def test_rounded_parts_add_up_and_are_off_by_less_than_one(parts: dict[str, Fraction]) -> None:
    found = whole(parts)
    assert sum(found.values()) == round(sum(parts.values(), Fraction()))
    assert all(abs(found[name] - amount) < 1 for name, amount in parts.items())


def test_what_is_left_over_by_rounding_goes_to_the_largest_remainders() -> None:
    parts = {"a": Fraction(12, 10), "b": Fraction(19, 10), "c": Fraction(19, 10)}
    assert whole(parts) == {"a": 1, "b": 2, "c": 2}


def seconds_of(spans: list[Span]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for span in spans:
        sums[span.phase] += span.micros / span.places / 1e6
    return dict(sums)


def test_a_kill_costs_the_rows_in_flight_and_the_new_start() -> None:
    """40 rows of 1 s at a time; killed after 10.5 s, when each row in it had been there for 0.5 s."""
    first = Life(
        name="j/1/replica-0", asked=0, node="a", process=1, ready=5, ended=15.5, lost=True, looked=15.5,
        busy=10.5, row_seconds=420, answered_seconds=400, running=40, finished=400, committed=400,
    )  # fmt: skip
    second = Life(
        name="j/1/replica-0~1", asked=16, node="a", process=17, ready=20, looked=25, successor=True,
        busy=5, row_seconds=200, answered_seconds=200, finished=200, committed=200,
    )  # fmt: skip
    found = seconds_of(spans_of([first, second], {"a": NodeBill(began=0)}, epoch=1, now=25))
    assert found[Phase.LOST] == pytest.approx(10.5 * 20 / 420)
    assert found[Phase.DRAINED] == pytest.approx(0.5)
    assert found[Phase.RESTART] == pytest.approx(4)
    assert found[Phase.BUSY] == pytest.approx(15.5 - 10.5 * 20 / 420)
    assert sum(found.values()) == pytest.approx(25)


def test_rows_answered_twice_are_recomputed() -> None:
    """Of 100 rows that it finished, 25 were another replica's by then."""
    life = Life(
        name="j/1/replica-0", asked=0, node="a", process=0, ready=0, looked=10, busy=8,
        row_seconds=80, answered_seconds=80, finished=100, committed=75,
    )  # fmt: skip
    found = seconds_of(spans_of([life], {"a": NodeBill(began=0)}, epoch=1, now=10))
    assert found == pytest.approx({Phase.REPEATED: 2, Phase.BUSY: 6, Phase.IDLE: 2})


def test_rows_that_it_never_finished_do_not_count_as_answered_twice() -> None:
    """A fifth of its work is lost; of the rest, a quarter was another replica's by then."""
    life = Life(
        name="j/1/replica-0", asked=0, node="a", process=0, ready=0, ended=10, lost=True, looked=10, busy=10,
        row_seconds=100, answered_seconds=80, finished=100, committed=75,
    )  # fmt: skip
    found = seconds_of(spans_of([life], {"a": NodeBill(began=0, ended=10)}, epoch=1, now=10))
    assert found == pytest.approx({Phase.LOST: 2, Phase.REPEATED: 2, Phase.BUSY: 6})


@pytest.mark.parametrize(("leaving", "idle", "drained"), [(6, 1, 4), (2, 0, 5), (10, 5, 0)])
def test_a_replica_that_takes_no_more_is_drained_where_it_has_nothing_to_do(
    leaving: float, idle: float, drained: float
) -> None:
    life = Life(
        name="j/1/replica-0", asked=0, node="a", process=0, ready=0, leaving=leaving, looked=10, busy=5
    )
    found = seconds_of(spans_of([life], {"a": NodeBill(began=0)}, epoch=1, now=10))
    assert found == {
        phase: seconds
        for phase, seconds in ((Phase.BUSY, 5), (Phase.IDLE, idle), (Phase.DRAINED, drained))
        if seconds
    }


def test_weights_count_until_the_replica_can_take_work() -> None:
    """The node goes on to fetch them for others."""
    life = Life(name="j/1/replica-0", asked=0, node="a", process=1, ready=5, weights=(2, 8), looked=9, busy=4)
    found = spans_of([life], {"a": NodeBill(began=0)}, epoch=1, now=9)
    assert seconds_of(found) == {Phase.IMAGE: 1, Phase.WEIGHTS: 3, Phase.ENGINE: 1, Phase.BUSY: 4}


@pytest.mark.parametrize(("asked", "places"), [(4, 2), (5, 1), (6, 1)])
def test_replicas_have_one_place_only_if_one_came_after_the_other(asked: float, places: int) -> None:
    """The node is known by its replicas alone: it is paid from when the first of them was asked for."""
    second = Life(name="j/1/replica-0~1", asked=asked, node="a", process=asked, ready=asked)
    first = Life(name="j/1/replica-0", asked=0, node="a", host="h", process=0, ready=0, ended=5)
    spans = spans_of([second, first], {}, epoch=1, now=20)
    assert {span.place for span in spans} == set(range(places))
    assert {(span.places, span.host, span.gpus) for span in spans} == {(places, "h", 0)}
    assert sum(seconds_of(spans).values()) == 20


@pytest.mark.parametrize(("there", "places", "gpus"), [(8.0, 4, 8.0), (2.0, 2, 4.0)])
def test_a_node_has_as_many_places_as_its_gpus_hold(there: float, places: int, gpus: float) -> None:
    """A replica takes two; where two replicas were at a time, so many GPUs were there, whatever is known."""
    some = [
        Life(name=f"j/1/replica-{number}", asked=0, node="a", gpus=wanted, process=0, ready=0)
        for number, wanted in enumerate((1.0, 2.0))
    ]
    spans = spans_of(some, {"a": NodeBill(began=0, gpus=there)}, epoch=1, now=10)
    assert {(span.places, span.gpus) for span in spans} == {(places, gpus)}
    assert {span.place for span in spans if span.phase is Phase.UNUSED} == set(range(2, places))


def test_spans_say_when_they_began() -> None:
    life = Life(name="j/1/replica-0", asked=102, node="a", process=103, ready=107, ended=109)
    spans = spans_of([life], {"a": NodeBill(began=100)}, epoch=1, now=110)
    assert [(span.phase, span.started) for span in spans] == [
        (Phase.BOOT, 100), (Phase.IMAGE, 102), (Phase.ENGINE, 103), (Phase.IDLE, 107), (Phase.IDLE, 109),
    ]  # fmt: skip


def test_a_replica_works_on_from_its_last_look_until_it_dies() -> None:
    life = Life(
        name="j/1/replica-0", asked=0, node="a", process=0, ready=0, ended=10, lost=True, looked=9, busy=9,
        row_seconds=90, answered_seconds=85, running=10, finished=85, committed=95,
    )  # fmt: skip
    found = seconds_of(spans_of([life], {"a": NodeBill(began=0, ended=10)}, epoch=1, now=50))
    assert found == pytest.approx({Phase.BUSY: 9.5, Phase.LOST: 0.5})


def test_gpus_that_no_replica_takes_are_paid_too() -> None:
    life = Life(name="j/1/replica-0", asked=0, node="a", gpus=1, process=0, ready=0, looked=10, busy=10)
    spans = spans_of([life], {"a": NodeBill(began=0, gpus=4, price=3_600_000_000)}, epoch=1, now=10)
    assert seconds_of(spans) == pytest.approx({Phase.BUSY: 2.5, Phase.UNUSED: 7.5})
    bill = account_of(spans, tokens=(600, 0, 400))
    assert (bill.gpu_seconds, bill.node_seconds, bill.dollars) == (40, 10, 10)
    assert bill.dollars_per_million_tokens == 10_000


def test_a_node_that_is_gone_costs_nothing_more() -> None:
    life = Life(name="j/1/replica-0", asked=0, node="a", process=0, ready=0, ended=5, lost=True)
    assert seconds_of(spans_of([life], {"a": NodeBill(began=0, ended=5)}, epoch=1, now=99)) == {Phase.IDLE: 5}


def test_the_machine_of_the_driver_is_paid_until_the_files_are_written() -> None:
    life = Life(name="j/2/replica-0", asked=0, node="a", host="here", process=1, ready=3, looked=5, busy=2)
    spans = spans_of([life], {"a": NodeBill(began=0, gpus=2)}, epoch=2, now=5)
    assert closing(spans, epoch=2, host="there", now=9) == []
    assert closing(spans, epoch=1, host="here", now=9) == []
    assert closing(spans, epoch=2, host="here", now=5) == closing(spans, epoch=2, host="here", now=4) == []
    rest = closing(spans, epoch=2, host="here", now=9)
    assert [(span.phase, span.started, span.micros, span.replica) for span in rest] == [
        (Phase.FINALISE, 5.0, 4_000_000, "")
    ]


def test_a_node_without_a_price_leaves_the_dollars_open() -> None:
    life = Life(name="j/1/replica-0", asked=0, node="a", process=0, ready=0)
    bill = account_of(spans_of([life], {"a": NodeBill(began=0)}, epoch=1, now=5))
    assert bill.dollars is None
    assert bill.as_dict()["parts"] is None
    assert bill.as_dict()["seconds"]["idle_tail"] == 5


def test_what_nodes_of_several_prices_cost_is_told_without_a_price_of_all() -> None:
    some = [Life(name=f"j/1/replica-{node}", asked=0, node=node, process=0, ready=0) for node in "ab"]

    def told(*prices: int | None) -> tuple[object, ...]:
        nodes = {node: NodeBill(began=0, price=price) for node, price in zip("ab", prices, strict=True)}
        spans = spans_of(some, nodes, epoch=1, now=3600)
        cost = account_of(spans, source="--price", tokens=(6, 5, 4)).as_dict()
        assert (cost["price_source"], cost["tokens"]["cached"]) == ("--price", 5)
        return cost["price_per_node_hour"], cost["dollars"]

    assert told(2_000_000, 2_000_000) == (2.0, 4.0)
    assert told(2_000_000, 3_000_000) == (None, 5.0)
    assert told(2_000_000, None) == (None, None)  # and not as if the other node were free


def test_every_phase_is_paid_for_by_one_part() -> None:
    paid = [phase for phases in PARTS.values() for phase in phases]
    assert sorted(paid) == sorted(Phase)
    assert {part_of(phase) for phase in Phase} == PARTS.keys()
