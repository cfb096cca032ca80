"""What a cluster's start would ask AWS for, as a person can read it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from dray.cluster.providers.ec2.offers import Pool, next_offer
from dray.cluster.providers.ec2.prices import Offers
from dray.cluster.providers.ec2.requests import (
    fleet_request,
    parameter_of,
    places,
    secret_request,
    tags_of,
    template_name,
    template_request,
    user_data,
)
from dray.cluster.providers.ec2.settings import EC2Settings
from dray.cluster.providers.protocol import Market, Planned

_HEAD = "ADDRESS-OF-THE-HEAD"


def planned(settings: EC2Settings, offers: Offers) -> tuple[Planned, ...]:
    """The objects in their order; the head's address and the token are known only once they are made."""
    return (*_token(settings), *_head(settings), *_workers(settings, offers))


def _token(settings: EC2Settings) -> Iterator[Planned]:
    name = parameter_of(settings.name)
    tags = tags_of(settings.name, "token", time.time() + settings.lifetime)
    body = secret_request(name, "made at the start, and shown nowhere", tags)
    yield Planned(kind="parameter", name=name, body=body)


def _head(settings: EC2Settings) -> Iterator[Planned]:
    yield _template(settings, "head", Market.ON_DEMAND)
    pools = [(settings.head_type, subnet) for subnet in settings.subnets]
    yield _fleet(settings, "head", Market.ON_DEMAND, pools, 1)


def _workers(settings: EC2Settings, offers: Offers) -> Iterator[Planned]:
    body = {"notes": list(offers.notes), "pools": [_row(one) for one in in_order(offers, settings.workers)]}
    yield Planned(kind="offers", name="in the order in which they are asked for", body=body)
    offer = next_offer(offers.pools, settings.workers)
    if offer:
        yield _template(settings, "worker", offer[0].market)
        yield _fleet(settings, "worker", offer[0].market, places(offer), settings.workers)


def in_order(offers: Offers, workers: int) -> list[Pool]:
    """All pools, as they follow each other when none has anything."""
    left, found = list(offers.pools), list[Pool]()
    while offer := next_offer(left, max(1, workers)):
        found += offer
        left = [one for one in left if one not in offer]
    return found


def _row(pool: Pool) -> dict[str, Any]:
    return {
        "type": pool.kind,
        "zone": pool.zone,
        "market": pool.market.value,
        "dollars_per_hour": round(pool.hourly, 4),
        "tokens_per_second": round(pool.rate),
        "dollars_per_million_tokens": round(pool.dollars_per_million, 4),
        "placement_score": pool.score,
    }


def _template(settings: EC2Settings, role: str, market: Market) -> Planned:
    script = user_data(settings, role, market, "" if role == "head" else _HEAD)
    body = template_request(settings, role, market, script, time.time() + settings.lifetime)
    body["LaunchTemplateData"]["UserData"] = script  # a person reads it; the API takes it in base64
    return Planned(kind="launch template", name=body["LaunchTemplateName"], body=body)


def _fleet(
    settings: EC2Settings, role: str, market: Market, pools: list[tuple[str, str]], machines: int
) -> Planned:
    terms = {"client_token": "made for each call", "expires": time.time() + settings.lifetime}
    template = template_name(settings.name, role, market)
    body = fleet_request(settings, role, template, pools, machines, market, terms)
    body["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"] = {"LaunchTemplateName": template}
    return Planned(kind="fleet", name=f"{settings.name} {role}", body=body)
