"""How many of a rented job's replicas may be on demand: the others wait for spot while the deadline has time.

It feeds :func:`dray.driver.capacity.policy.decide` with what the driver sees. Spot that is missing for a
while counts as not to be had; what was there so far says what is to be expected. Nothing can be decided
before rows are answered, and none are without a replica: so one may be on demand then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dray.driver.capacity.policy import CapacityDecision, Rule, Situation, SpotHistory, decide, most_useful

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

    def look(self, now: Situation | None, held: Held, at: float) -> CapacityDecision | None:
        """What to hold from now on, where other replicas may be on demand than before; else None.

        ``now`` is None while nothing is known of what is left; ``at`` are seconds of a clock.
        """
        self._remember(held, at)
        short = self._short_since is not None and at - self._short_since >= SHORT_SECONDS
        found = self._first(held, short) if now is None else self._decided(now, held, short)
        if found is None or found.on_demand == self._chosen:
            return None
        self._chosen = found.on_demand
        return found

    def _first(self, held: Held, short: bool) -> CapacityDecision | None:
        if not short or held.missing < held.wanted:
            return None
        reason = f"1 on-demand replica: {Rule.UNKNOWN} (spot was not to be had for {SHORT_SECONDS:.0f} s)"
        return CapacityDecision(spot=0, on_demand=1, rule=Rule.UNKNOWN, reason=reason)

    def _decided(self, now: Situation, held: Held, short: bool) -> CapacityDecision:
        return decide(
            replace(
                now,
                spot=held.spot,
                on_demand=held.on_demand,
                spot_to_be_had=held.spot + held.coming if short else None,
                spot_expected=self.history.expected(most_useful(now)),
                spot_price=held.spot_price,
                on_demand_price=held.on_demand_price,
            )
        )

    def _remember(self, held: Held, at: float) -> None:
        seconds = 0.0 if self._looked is None else max(at - self._looked, 0.0)
        self._looked = at
        self.history.add(wanted=held.wanted - held.on_demand, had=held.spot, seconds=seconds)
        if not held.missing:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = at
