"""How many of a rented job's replicas may be on demand: the others wait for spot while the deadline has time.

It feeds :func:`dray.driver.capacity_policy.decide` with what the driver sees. Spot that is missing for a
while counts as not to be had; what was there so far says what is to be expected.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dray.driver.capacity_policy import Decision, Situation, SpotHistory, decide, most_useful

SHORT_SECONDS = 180.0
"""Spot replicas that were missing for so long are not to be had: a provider was asked three times by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Replicas at present, of ``wanted`` ones: those that work, by market, and ``coming`` ones with a place.

    Prices are for a replica and an hour; 0 where none is known.
    """

    wanted: int
    spot: int
    on_demand: int
    coming: int
    spot_price: float = 0.0
    on_demand_price: float = 0.0

    @property
    def missing(self) -> int:
        """Replicas without a machine."""
        return max(self.wanted - self.spot - self.on_demand - self.coming, 0)


@dataclass(slots=True)
class MarketChoice:
    """Looks again and again; ``history`` is what spot gave so far."""

    history: SpotHistory = field(default_factory=SpotHistory)
    _looked: float | None = None
    _short_since: float | None = None
    _chosen: int = 0

    def look(self, now: Situation, held: Held) -> Decision | None:
        """What to hold from now on, where other replicas may be on demand than before; else None."""
        self._remember(now, held)
        useful = most_useful(now)
        short = self._short_since is not None and now.elapsed - self._short_since >= SHORT_SECONDS
        found = decide(
            replace(
                now,
                spot=held.spot,
                on_demand=held.on_demand,
                coming=held.coming,
                spot_to_be_had=held.spot + held.coming if short else None,
                spot_expected=self.history.expected(useful),
                spot_price=held.spot_price,
                on_demand_price=held.on_demand_price,
            )
        )
        if found.on_demand == self._chosen:
            return None
        self._chosen = found.on_demand
        return found

    def _remember(self, now: Situation, held: Held) -> None:
        seconds = 0.0 if self._looked is None else max(now.elapsed - self._looked, 0.0)
        self._looked = now.elapsed
        self.history.add(wanted=held.wanted - held.on_demand, had=held.spot, seconds=seconds)
        if not held.missing:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now.elapsed
