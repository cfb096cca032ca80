"""Published savings against hosted batch prices, recomputed from the prices of September 2024."""

from __future__ import annotations

from datetime import date

import pytest

from dray.planner.catalogue import hosted_prices, load_catalogue
from tests.support.reference_points import PLAIN, SHARED, Point, predicted

pytestmark = pytest.mark.unit

PHI = 0.925
"""Of tuned vLLM on an L40S: it explains both throughputs."""
DAY = date(2024, 9, 30)
CLAIMS = [
    (PLAIN, "GPT-4o mini", 2.2),
    (PLAIN, "Bedrock Llama 3.1 8B", 2.9),
    (SHARED, "GPT-4o mini", 4.78),
    (SHARED, "Bedrock Llama 3.1 8B", 6.1),
]


@pytest.mark.parametrize(("point", "api", "published"), CLAIMS)
def test_a_claim_is_recomputed_within_ten_percent(point: Point, api: str, published: float) -> None:
    price = load_catalogue().instances["g6e.xlarge"].list_price(DAY)
    hosted = {one.name: one for one in hosted_prices(DAY)}[api].dollars(2000, 100)
    assert price is not None
    assert hosted is not None
    ours = price.likely / 3600 / (PHI * predicted(point))
    assert hosted / ours == pytest.approx(published, rel=0.1)
