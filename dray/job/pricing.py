"""What a node costs per hour: as its user says, or as the catalogue has it for its type of instance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from dray.account.spans import MICRO, Span
from dray.cluster.base import Node
from dray.planner.catalogue import Price, load_catalogue

UNPRICED = (
    "a budget needs the price of a node, and dray knows none for this cluster's: give --price, the dollars "
    "that one costs an hour"
)


def price_of(node: Node | None, given: float | None) -> int | None:
    """Micro-dollars per hour of a node, None where not known; ``given`` is the user's price in dollars."""
    if given is not None:
        return round(given * MICRO)
    found = list_price(node)
    return None if found is None else round(found.likely * MICRO)


def with_price(spans: Iterable[Span], given: float | None) -> list[Span]:
    """The spans, in which nodes that had no price in their run have the one that the user gives now."""
    own = None if given is None else price_of(None, given)
    return [span if span.price is not None else replace(span, price=own) for span in spans]


def list_price(node: Node | None) -> Price | None:
    """The catalogue's price of a node whose type of instance is known.

    A spot node of a type whose spot price it lacks counts with the price on demand: spot costs no more.
    """
    if node is None or not node.instance:
        return None
    instance = load_catalogue().instances.get(node.instance)
    if instance is None:
        return None
    day = datetime.now(UTC).date()
    return (instance.spot_price(day) if node.spot else None) or instance.list_price(day)


def source_of(given: float | None) -> str:
    """Where the prices of a bill come from, in words."""
    return "given" if given is not None else "list prices of dray's catalogue"
