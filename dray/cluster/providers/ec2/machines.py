"""Instances as machines of the protocol: those that EC2 lists, and those that it is about to list."""

from __future__ import annotations

from dray.cluster.providers.ec2.answers import Found
from dray.cluster.providers.ec2.offers import Pool
from dray.cluster.providers.ec2.requests import EXPIRES_TAG, ROLE_TAG
from dray.cluster.providers.made import expiry_of
from dray.cluster.providers.protocol import Machine, Market, Phase
from dray.planner.catalogue import load_catalogue

_PHASES = {"pending": Phase.COMING, "running": Phase.UP}


def listed(found: Found, pool: Pool | None) -> Machine:
    """One that EC2 lists; ``pool`` is where this process bought it, if it did."""
    known = load_catalogue().instances.get(found.kind)
    return Machine(
        name=found.id,
        kind=found.kind,
        market=Market.SPOT if found.spot else Market.ON_DEMAND,
        phase=_PHASES.get(found.state, Phase.LEAVING),
        head=found.tags.get(ROLE_TAG) == "head",
        zone=found.zone,
        address=found.address,
        expires=expiry_of(found.tags.get(EXPIRES_TAG, "")),
        hourly=None if pool is None else pool.hourly,
        gpus=None if known is None else known.devices,
    )


def coming(name: str, pool: Pool, expires: float) -> Machine:
    """One that was just bought."""
    return Machine(
        name=name,
        kind=pool.kind,
        market=pool.market,
        phase=Phase.COMING,
        zone=pool.zone,
        expires=expires,
        hourly=pool.hourly,
        gpus=pool.gpus,
    )
