"""Which machines to ask for next: by dollars per million tokens, spot and on demand alike."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dray.cluster.providers.protocol import Market

TOLERANCE = 0.03
"""Pools that cost at most so much more than the best are asked for together: AWS takes the calmest."""

_MOST_POOLS = 50
_TYPE = re.compile(r"([a-z]+)(\d+)")
_LOST_HOURS = 0.1
"""Of a machine, for each interruption: its successor boots, reads weights, and builds an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Machines of one type in one zone and market: ``hourly`` dollars, ``rate`` tokens per second.

    Each has ``gpus``, and takes ``vcpus`` of a quota. ``interruptions`` per hour are to be expected.
    ``score`` is AWS's spot placement score, where it is known.
    """

    kind: str
    zone: str
    subnet: str
    market: Market
    hourly: float
    rate: float
    gpus: float = 1.0
    vcpus: int = 0
    interruptions: float = 0.0
    score: int | None = None

    @property
    def cost(self) -> float:
        """Dollars for an hour of work: what an interruption wastes is paid for, too."""
        return self.hourly * (1.0 + _LOST_HOURS * self.interruptions)

    @property
    def dollars_per_million(self) -> float:
        """Dollars per million tokens."""
        return self.cost / (self.rate * 3600.0) * 1e6

    @property
    def quota(self) -> tuple[Market, str]:
        """The quota of processors that it takes from: types of a family share one, by market.

        AWS counts P4, P3 and P2 together on spot, and P5 apart
        (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-limits.html), and all P together on
        demand.
        """
        found = _TYPE.match(self.kind)
        letters, generation = found.groups() if found else (self.kind, "")
        if letters == "p" and self.market is Market.SPOT:
            return self.market, "p2 to p4" if int(generation) <= 4 else f"p{generation}"
        return self.market, "g" if letters == "vt" else letters


def next_offer(pools: Iterable[Pool], wanted: int, got: Collection[Pool] = ()) -> tuple[Pool, ...]:
    """The pools to ask for ``wanted`` machines, all of one market, the best first; none where there are none.

    The whole cluster counts: what it costs for each token with those machines that it ``got`` already. One
    more slow machine may be dear by itself, and yet make a large cluster less dear than a fast one would.
    """
    cost, rate = sum(one.cost for one in got), sum(one.rate for one in got)

    def together(pool: Pool) -> float:
        return (cost + wanted * pool.cost) / (rate + wanted * pool.rate)

    ranked = sorted(pools, key=lambda one: (together(one), -(one.score or 0), one.kind, one.zone))
    if not ranked or wanted < 1:
        return ()
    limit, market = together(ranked[0]) * (1.0 + TOLERANCE), ranked[0].market
    near = [one for one in ranked if one.market is market and together(one) <= limit]
    return tuple(near[:_MOST_POOLS])
