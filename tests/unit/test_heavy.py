"""Heavy tests: each run of the tests has a share of them, and over some runs all of them run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.support.heavy import ONE_OF, Unit, chosen_heavy, heavy_unit

HEAVY, UNIT = pytest.mark.heavy.mark, pytest.mark.unit.mark
THIRD = pytest.mark.heavy(one_of=3).mark


@dataclass
class Found:
    """What pytest knows of a test that it has collected, as far as it is asked here."""

    nodeid: str
    own_markers: list[Any] = field(default_factory=list)
    of_file: list[Any] = field(default_factory=list)

    def get_closest_marker(self, name: str) -> Any:
        return next((mark for mark in [*self.own_markers, *self.of_file] if mark.name == name), None)


def unit(found: Found) -> Unit | None:
    return heavy_unit(cast("pytest.Item", found))


def chosen(tests: list[Found], seed: int) -> frozenset[Unit]:
    return chosen_heavy(cast("list[pytest.Item]", tests), seed)


def test_a_marked_test_is_chosen_by_itself_and_a_marked_file_as_a_whole() -> None:
    assert unit(Found("a.py::test[1]", [UNIT])) is None
    assert unit(Found("a.py::test[2]", [UNIT, HEAVY])) == Unit("a.py::test[2]", ONE_OF)
    assert unit(Found("a.py::test[3]", [THIRD], [HEAVY])) == Unit("a.py::test[3]", 3)
    assert unit(Found("b.py::test_one", [], [UNIT, HEAVY])) == Unit("b.py", ONE_OF)
    assert unit(Found("b.py::test_two", [UNIT], [THIRD])) == Unit("b.py", 3)


@pytest.mark.parametrize("heavy", [0, 1, 4, 5, 100])
def test_a_run_has_its_share_and_over_some_runs_all_run(heavy: int) -> None:
    tests = [Found(f"a.py::test[{n}]", [HEAVY]) for n in range(heavy)] + [Found("a.py::test_light")]
    by_seed = [chosen(tests, seed) for seed in range(1500)]
    assert {len(one) for one in by_seed} == {-(-heavy // ONE_OF)}
    assert {one.name for run in by_seed for one in run} == {one.nodeid for one in tests if one.own_markers}


def test_a_mark_may_have_a_share_of_its_own() -> None:
    """Among three that run in turn one runs, whatever else is heavy."""
    tests = [Found(f"a.py::test[{n}]", [HEAVY]) for n in range(9)]
    tests += [Found(f"b.py::test[{n}]", [THIRD]) for n in range(6)]
    for seed in range(20):
        assert sorted(one.one_of for one in chosen(tests, seed)) == [3, 3, ONE_OF]


def test_every_process_of_a_run_chooses_the_same(rng: random.Random) -> None:
    tests = [Found(f"a.py::test[{n}]", [HEAVY]) for n in range(20)]
    assert chosen(rng.sample(tests, 20), 7) == chosen(tests, 7)
