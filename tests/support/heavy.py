"""Tests that take two seconds of a core, alone or with their other parameters: make test runs a share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest

ONE_OF = 150
"""Of so many heavy tests one runs: over some runs all of them do. ``heavy(one_of=3)`` has another share."""


class Unit(NamedTuple):
    """What is chosen as one: a test with the mark, or a file with the mark; one of ``one_of`` runs."""

    name: str
    one_of: int


def heavy_unit(item: pytest.Item) -> Unit | None:
    """The unit that a test belongs to; None for tests without the mark."""
    own = next((mark for mark in item.own_markers if mark.name == "heavy"), None)
    mark = own or item.get_closest_marker("heavy")
    if mark is None:
        return None
    name = item.nodeid if own else item.nodeid.partition("::")[0]
    return Unit(name, mark.kwargs.get("one_of", ONE_OF))


def chosen_heavy(items: Sequence[pytest.Item], seed: int) -> frozenset[Unit]:
    """The heavy tests that a run with this seed runs; the same in each process of pytest-xdist.

    One of each few that stand together, so that a run has some of every folder, and takes as long as others.
    """
    rng = random.Random(f"{seed} heavy")
    units = sorted({unit for item in items if (unit := heavy_unit(item))})
    chosen: set[Unit] = set()
    for one_of in sorted({unit.one_of for unit in units}):
        same = [unit for unit in units if unit.one_of == one_of]
        chosen |= {rng.choice(same[begin : begin + one_of]) for begin in range(0, len(same), one_of)}
    return frozenset(chosen)
