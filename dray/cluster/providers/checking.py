"""What the settings of all providers are held to: forms and bounds of fields, each named in its error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from dray.cluster.providers.protocol import Market
from dray.errors import ConfigError

_COUNTS = {"workers": (0, 1000), "minimum": (0, 1000), "port": (1024, 65535)}
_SECONDS = {"lifetime": (300, 7 * 86400), "start_seconds": (1, 7200), "join_seconds": (1, 7200)}
Bounds = Mapping[str, tuple[float, float]]
SHARED_BOUNDS: Bounds = {**_COUNTS, **_SECONDS}
"""The least and the most of the numbers that all settings have."""


def check_form(kind: str, name: str, value: str, form: re.Pattern[str]) -> None:
    """A text of a field; ConfigError where it is not of the form."""
    if form.fullmatch(value) is None:
        raise ConfigError(f"{kind}: {name} has {value!r}, which is not of the form {form.pattern}")


def check_numbers(kind: str, settings: Any, bounds: Bounds) -> None:
    """Hold the numbers of a cluster's settings to their bounds.

    Raises:
        ConfigError: one is out of its bounds, no market is allowed, or more workers have to come than are
            asked for.
    """
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        if not isfinite(value) or not least <= value <= most:
            raise ConfigError(f"{kind}: {name} is {value:g}, but must be from {least:g} to {most:g}")
    if not (settings.spot or settings.on_demand):
        raise ConfigError(f"{kind}: neither spot nor on_demand is allowed; allow one of them")
    if settings.minimum > settings.workers:
        raise ConfigError(
            f"{kind}: minimum is {settings.minimum}, and only {settings.workers} workers are wanted"
        )


def markets_of(settings: Any) -> frozenset[Market]:
    """Where workers may come from."""
    allowed = {Market.SPOT: settings.spot, Market.ON_DEMAND: settings.on_demand}
    return frozenset(market for market, given in allowed.items() if given)
