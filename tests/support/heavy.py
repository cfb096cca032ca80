"""Tests that take five seconds of a core, alone or with their other parameters: make test runs a share."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

ONE_OF = 150
"""Of so many heavy tests one runs: over some runs all of them do."""


def heavy_unit(item: pytest.Item) -> str | None:
    """What is chosen as one: a test with the mark, or a file with the mark; None for other tests."""
    if any(mark.name == "heavy" for mark in item.own_markers):
        return item.nodeid
    return item.nodeid.partition("::")[0] if item.get_closest_marker("heavy") else None


def chosen_heavy(items: Sequence[pytest.Item], seed: int) -> frozenset[str]:
    """The heavy tests that a run with this seed runs; the same in each process of pytest-xdist.

    One of each few that stand together, so that a run has some of every folder, and takes as long as others.
    """
    rng = random.Random(f"{seed} heavy")
    units = sorted({unit for item in items if (unit := heavy_unit(item))})
    return frozenset(rng.choice(units[begin : begin + ONE_OF]) for begin in range(0, len(units), ONE_OF))
