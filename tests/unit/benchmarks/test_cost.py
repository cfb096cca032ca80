"""The table of predicted costs: every case has a plan, and figures are the planner's."""

from __future__ import annotations

from datetime import date
from functools import cache

import pytest

from dray.planner.catalogue import load_catalogue
from tests.benchmarks.cost import MODELS, SHARED, Beside, Case, beside_hosted, cases, proven, settings
from tests.support.reference_points import CLAIM_DAY, CLAIMS

pytestmark = pytest.mark.unit

DAY = date(2026, 11, 25)


@cache
def priced() -> tuple[Case, ...]:
    return tuple(cases(settings(DAY, doubtful=False), 100_000))


def beside() -> list[Beside]:
    return [one for case in priced() for one in beside_hosted(case)]


@pytest.mark.heavy(one_of=3)
def test_each_case_has_a_plan_of_proven_hardware() -> None:
    assert len(priced()) == 3 * len(MODELS) * len(SHARED)
    assert all(case.plan.instance.device.name in proven() for case in priced())
    assert any(one.device.name not in proven() for one in load_catalogue().instances.values())


def test_prices_are_those_of_the_day_and_of_the_market() -> None:
    assert all(case.plan.price.day <= case.setting.day for case in priced())
    assert not any(case.plan.spot for case in priced() if not case.setting.spot)
    assert all(one.api.date <= one.case.setting.day for one in beside())


def test_every_published_claim_stands_beside_its_prediction() -> None:
    found = {(one.case.shared, one.api.name) for one in beside() if one.published is not None}
    assert found == CLAIMS.keys()
    assert all(one.case.setting.day == CLAIM_DAY for one in beside() if one.published is not None)


def test_a_shared_prefix_makes_a_job_cheaper() -> None:
    dollars = {(case.setting.name, case.model, case.shared): case.dollars for case in priced()}
    for setting, model, shared in dollars:
        if shared:
            assert dollars[setting, model, shared] < dollars[setting, model, 0.0]
