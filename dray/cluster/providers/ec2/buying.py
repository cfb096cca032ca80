"""Get machines offer by offer, until there are as many as are wanted, or AWS has no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dray.cluster.providers.ec2.answers import FleetResult, Refused, Shortage
from dray.cluster.providers.ec2.offers import Pool, next_offer
from dray.cluster.providers.protocol import Market

Ask = Callable[[Sequence[Pool], int], FleetResult]
"""Ask for so many machines from these pools, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """The machines that came, by id, and why there are no more."""

    machines: dict[str, Pool]
    reasons: tuple[str, ...]


def buy(pools: Sequence[Pool], wanted: int, got: Sequence[Pool], ask: Ask) -> Bought:
    """Ask for the best pools, then for the best of those that are left.

    Each answer with machines missing takes pools away: those without capacity, those too large for what is
    left of a quota, and where AWS names none, all that were asked. So this ends, after few calls.
    """
    left, machines, reasons = list(pools), dict[str, Pool](), dict[str, None]()
    while len(machines) < wanted:
        offer = next_offer(left, wanted - len(machines), [*got, *machines.values()])
        if not offer:
            break
        result = ask(offer, wanted - len(machines))
        by_place = {(one.kind, one.subnet): one for one in offer}
        for name, kind, subnet in result.instances:
            machines[name] = by_place.get((kind, subnet)) or _nearest(offer, kind)
        if len(machines) < wanted:
            gone = _gone(offer, result.refused)
            left = [one for one in left if not gone(one)]
            reasons |= dict.fromkeys(_reason(offer, one) for one in result.refused)
            if not result.refused:
                reasons[f"AWS gave no reason for {_named(offer)}"] = None
    return Bought(machines=machines, reasons=tuple(reasons) if len(machines) < wanted else ())


def buy_spot_first(
    pools: Sequence[Pool], wanted: int, got: Sequence[Pool], ask: Ask, on_demand: int
) -> Bought:
    """The same, with no more than so many new machines ``on_demand``; the others wait for spot.

    Where the best offer is on demand, spot is not worth the wait.
    """
    best = next_offer(pools, wanted, got)
    spot = [one for one in pools if one.market is Market.SPOT]
    if not spot or (best and best[0].market is not Market.SPOT):
        return buy(pools, wanted, got, ask)
    found = buy(spot, wanted, got, ask)
    missing = wanted - len(found.machines)
    if not missing:
        return found
    machines, reasons = dict(found.machines), list(found.reasons)
    if on_demand:
        others = [one for one in pools if one.market is not Market.SPOT]
        dear = buy(others, min(missing, on_demand), [*got, *machines.values()], ask)
        machines |= dear.machines
        reasons += dear.reasons
    if missing > on_demand:
        reasons.append(f"{missing - on_demand} wait for spot: no more may be on demand yet")
    return Bought(machines=machines, reasons=tuple(reasons) if len(machines) < wanted else ())


def _nearest(offer: Sequence[Pool], kind: str) -> Pool:
    return next((one for one in offer if one.kind == kind), offer[0])


def _gone(offer: Sequence[Pool], refused: Sequence[Refused]) -> Callable[[Pool], bool]:
    """Whether a pool is not worth another call: after each answer at least one is not."""
    places = {(one.kind, one.subnet) for one in refused if one.kind}
    too_large = _beyond_quota(offer, refused)
    market = offer[0].market

    def refuses(pool: Pool) -> bool:
        here = pool.market is market and (pool.kind, pool.subnet) in places
        return here or pool.vcpus >= too_large.get(pool.quota, math.inf)

    named = {pool for pool in offer if refuses(pool)}
    asked = named or set(offer)
    return lambda pool: pool in asked or refuses(pool)


def _beyond_quota(offer: Sequence[Pool], refused: Sequence[Refused]) -> dict[tuple[Market, str], float]:
    """The fewest processors of a machine that each quota had no room for: smaller machines may fit."""
    least: dict[tuple[Market, str], float] = {}
    for one in refused:
        if one.shortage is Shortage.QUOTA:
            for pool in offer:
                if one.kind in ("", pool.kind):
                    least[pool.quota] = min(pool.vcpus, least.get(pool.quota, math.inf))
    return least


def _reason(offer: Sequence[Pool], refused: Refused) -> str:
    zone = next((one.zone for one in offer if one.subnet == refused.subnet), "")
    place = " in ".join(part for part in (refused.kind, zone) if part) or _named(offer)
    what = {
        Shortage.CAPACITY: "AWS has no capacity",
        Shortage.QUOTA: "the account's quota is used up: ask for more under Service Quotas",
        Shortage.PRICE: "the spot price is above the one on demand",
        Shortage.UNSUPPORTED: "not offered there",
        Shortage.BUSY: "AWS took no more calls",
    }[refused.shortage or Shortage.UNSUPPORTED]
    unclear = refused.shortage in (None, Shortage.UNSUPPORTED) and refused.message
    said = f"{refused.code}: {' '.join(refused.message.split())[:200]}" if unclear else refused.code
    return f"{place}, {offer[0].market.value}: {what} ({said})"


def _named(offer: Sequence[Pool]) -> str:
    return ", ".join(sorted({one.kind for one in offer}))
