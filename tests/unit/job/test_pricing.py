"""What a node costs per hour, as the catalogue has it for its type and market."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dray.cluster.base import Node
from dray.job.pricing import price_of
from dray.planner.catalogue import load_catalogue

pytestmark = pytest.mark.unit


def node(instance: str, *, spot: bool) -> Node:
    return Node(node_id="n", host="h", cpus=8, gpus=1, stable=False, instance=instance, spot=spot)


@pytest.mark.parametrize("name", sorted(load_catalogue().instances))
def test_a_spot_node_of_each_type_has_a_price(name: str) -> None:
    """The EC2 provider also buys types whose spot price AWS alone knows: a budget is to count them."""
    known, day = load_catalogue().instances[name], datetime.now(UTC).date()
    listed = known.list_price(day)
    dear, spot = price_of(node(name, spot=False), None), price_of(node(name, spot=True), None)
    assert dear == (None if listed is None else round(listed.likely * 1e6))
    if known.spot_price(day) is None:
        assert spot == dear
    else:
        assert spot is not None and (dear is None or spot < dear)


def test_what_the_user_says_counts_and_an_unknown_type_has_no_price() -> None:
    assert price_of(node("g6.xlarge", spot=True), 2.0) == 2_000_000
    assert price_of(node("unheard-of", spot=True), None) is None
    assert price_of(None, None) is None
