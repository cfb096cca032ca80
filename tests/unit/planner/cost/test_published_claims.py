"""Published savings against hosted batch prices, recomputed from the prices of September 2024."""

from __future__ import annotations

import pytest

from dray.planner.catalogue import hosted_prices, load_catalogue
from tests.support.reference_points import CLAIM_DAY, CLAIMS, PLAIN, SHARED

pytestmark = pytest.mark.unit

PHI = 0.925
"""Of tuned vLLM on an L40S: it explains both throughputs."""
POINTS = {point.hit_share: point for point in (PLAIN, SHARED)}


@pytest.mark.parametrize(
    ("shared", "api", "published"), [(*key, value) for key, value in CLAIMS.items() if "70B" not in key[1]]
)
def test_a_claim_of_8b_is_recomputed_within_ten_percent(shared: float, api: str, published: float) -> None:
    price = load_catalogue().instances["g6e.xlarge"].list_price(CLAIM_DAY)
    hosted = {one.name: one for one in hosted_prices(CLAIM_DAY)}[api].dollars(2000, 100)
    assert price is not None
    assert hosted is not None
    ours = price.likely / 3600 / (PHI * POINTS[shared].predicted)
    assert hosted / ours == pytest.approx(published, rel=0.1)
