"""What pools cost now, and how calm they are: from AWS where it says so, else from dray's dated catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from dray.cluster.providers.ec2.api import Ec2Api
from dray.cluster.providers.ec2.offers import Pool
from dray.cluster.providers.ec2.settings import EC2Settings
from dray.cluster.providers.protocol import Market
from dray.errors import ConfigError, DrayError
from dray.planner.catalogue import Instance, load_catalogue

_STALE = timedelta(days=90)  # AWS keeps the history for so long: an older price is none
# "If you specify one or two instance types, [...] the returned placement score will always be low": of
# InstanceTypes in GetSpotPlacementScoresRequest, botocore's model of EC2.
_SCORED_TYPES = 3
_CALM, _CROWDED = 8, 3
"""Placement scores from which on a pool counts as calm, and up to which as crowded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """All pools that there are, and ``notes`` on where their figures come from.

    ``spot``: AWS's prices by type and zone, and ``scores`` by zone, as far as it said them.
    """

    pools: tuple[Pool, ...]
    notes: tuple[str, ...] = ()
    spot: Mapping[tuple[str, str], float] = field(default_factory=dict)
    scores: Mapping[str, int] = field(default_factory=dict)


def offers_of(
    settings: EC2Settings, rates: Mapping[str, float], api: Ec2Api, today: date, before: Offers | None = None
) -> Offers:
    """Every type in every zone, spot and on demand as the settings allow.

    What AWS does not say this time is as it was ``before``.

    Raises:
        ConfigError: a subnet is not there, or no zone of theirs has any of the types.
    """
    zones = api.zones_of(settings.subnets)
    types, known = sorted(rates), load_catalogue().instances
    there = api.offered([*types, settings.head_type], zones.values())
    notes: list[str] = []
    _refuse_absent(settings, types, zones, there, notes)
    if not settings.region.startswith("us-"):
        notes.append("prices on demand are those of us-east-1, and this region's may be higher")
    spot = _spot_prices(types, api, notes) if settings.spot else {}
    scores = _scores(settings, types, api, notes) if settings.spot else {}
    if before is not None:
        spot, scores = spot or before.spot, scores or before.scores
    pools: list[Pool] = []
    for name, rate in rates.items():
        for subnet, zone in zones.items():
            if (name, zone) in there:
                place = _Place(known[name], rate, zone, subnet)
                pools += _pools(place, settings, today, spot.get((name, zone)), scores.get(zone))
    if not pools:
        raise ConfigError(f"ec2: no price is known for any of {', '.join(types)}")
    return Offers(pools=tuple(pools), notes=tuple(notes), spot=spot, scores=scores)


def _refuse_absent(
    settings: EC2Settings,
    types: list[str],
    zones: Mapping[str, str],
    there: set[tuple[str, str]],
    notes: list[str],
) -> None:
    """Refuse types that no zone of the subnets has, and note the subnets that give nothing.

    Raises:
        ConfigError: the head's type, or all of the workers', are offered in none of them.
    """
    named = ", ".join(f"{zone} ({subnet})" for subnet, zone in zones.items())
    for setting, wanted in (("head_type", [settings.head_type]), ("instance_types", types)):
        if not any((name, zone) in there for name in wanted for zone in zones.values()):
            raise ConfigError(
                f"ec2: {setting}: AWS offers none of {', '.join(wanted)} in {named}; "
                "name other types, or subnets in other zones"
            )
    for subnet, zone in zones.items():
        if not any((name, zone) in there for name in types):
            notes.append(f"no worker comes from {subnet}: AWS offers none of the types in {zone}")


@dataclass(frozen=True, slots=True)
class _Place:
    instance: Instance
    rate: float
    zone: str
    subnet: str


def _pools(
    place: _Place, settings: EC2Settings, today: date, live: float | None, score: int | None
) -> Iterator[Pool]:
    instance = place.instance
    listed, bundled = instance.list_price(today), instance.spot_price(today)
    spot = live if live is not None else bundled.likely if bundled is not None else None

    def pool(market: Market, hourly: float, interruptions: float = 0.0) -> Pool:
        return Pool(
            kind=instance.name,
            zone=place.zone,
            subnet=place.subnet,
            market=market,
            hourly=hourly,
            rate=place.rate,
            gpus=instance.devices,
            vcpus=instance.vcpus,
            interruptions=interruptions,
            score=score if market is Market.SPOT else None,
        )

    if settings.spot and spot is not None:
        yield pool(Market.SPOT, spot, _interruptions(instance, score))
    if settings.on_demand and listed is not None:
        yield pool(Market.ON_DEMAND, listed.likely)


def _interruptions(instance: Instance, score: int | None) -> float:
    """Per hour: the catalogue's likely figure, or its lower or upper end where the score says so."""
    known = instance.interruptions
    if score is None or _CROWDED < score < _CALM:
        return known.likely
    return known.low if score >= _CALM else known.high


def _spot_prices(types: list[str], api: Ec2Api, notes: list[str]) -> Mapping[tuple[str, str], float]:
    oldest = datetime.now(UTC) - _STALE
    try:
        found = {place: price for place, (price, day) in api.spot_prices(types).items() if day > oldest}
    except DrayError as error:
        notes.append(f"spot prices are those of dray's catalogue: {error}")
        return {}
    if not found:
        notes.append("spot prices are those of dray's catalogue: AWS gave none for these types")
    return found


def _scores(settings: EC2Settings, types: list[str], api: Ec2Api, notes: list[str]) -> Mapping[str, int]:
    if len(types) < _SCORED_TYPES:
        notes.append(f"placement scores are not asked for: AWS scores fewer than {_SCORED_TYPES} types low")
        return {}
    try:
        return api.placement_scores(types, max(1, settings.workers))
    except DrayError as error:
        notes.append(f"placement scores are unknown: {error}")
        return {}
