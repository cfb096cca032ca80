"""A short share of the soak: ``python -m tests.chaos.soak`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.soak import Soak, groups_of
from tests.chaos.soak_plan import MIXES, Plan

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

ROWS = 1000


@pytest.mark.heavy
def test_jobs_under_random_faults(tmp_path: Path, seed: int, chaos_rounds: int) -> None:
    with Soak(tmp_path, rows=ROWS, seed=seed) as soaking:
        for number in range(chaos_rounds):
            soaking.run(number)
    print("\n" + "\n\n".join(table.markdown() for table in soaking.totals.tables()))
    assert soaking.totals.failures == []
    assert soaking.totals.faults


def test_a_run_is_drawn_from_its_number_alone() -> None:
    groups = groups_of(ROWS)
    assert sorted(row for group in groups for row in group) == list(range(ROWS))
    plans = [Plan.draw(7, number, groups) for number in range(300)]
    assert plans == [Plan.draw(7, number, groups) for number in range(300)]
    assert {plan.mix for plan in plans} == set(MIXES)
    assert any(plan.poison for plan in plans)
    assert {plan.postgres for plan in plans} == {True, False}
    first, again = plans[3].faults(), plans[3].faults()
    assert [next(first)[:2] for _ in range(20)] == [next(again)[:2] for _ in range(20)]
