"""A short share of ``python -m tests.chaos.swarm --dedupe``: drivers die, and three rows in ten repeat."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.chaos.swarm import Tally, plan_of, run_plan
from tests.chaos.warm import import_all

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

RUNS = 2


def _runs(folder: Path, seed: int, runs: int) -> Tally:
    """In a process of its own: its drivers are forked from it, and it has no threads."""
    import_all(folder / "first")
    tally = Tally()
    numbers = (number for number in range(10 * runs) if not plan_of(seed, number).postgres)
    for number, _ in zip(numbers, range(runs), strict=False):
        run = folder / str(number)
        tally.add(run_plan(plan_of(seed, number, dedupe=True), run, f"sqlite:///{run / 'jobs.db'}"))
    return tally


@pytest.mark.heavy(one_of=3)
def test_repeated_rows_are_computed_once_whatever_dies(tmp_path: Path, seed: int, chaos_rounds: int) -> None:
    with get_context("spawn").Pool(1) as pool:
        tally = pool.apply(_runs, (tmp_path, seed, max(RUNS, chaos_rounds)))
    print(tally.line)
    assert tally.runs >= RUNS
    assert tally.acknowledged
