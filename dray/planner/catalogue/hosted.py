"""What hosted APIs would charge for the same tokens."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from dray.errors import ConfigError

_FILE = Path(__file__).with_name("hosted.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedPrice:
    """Dollars per million tokens of a batch API, from ``date`` on."""

    name: str
    date: date
    source: str
    batch_input: float
    batch_output: float

    def dollars(self, input_tokens: float, output_tokens: float) -> float:
        """What these tokens cost."""
        return (self.batch_input * input_tokens + self.batch_output * output_tokens) / 1e6


@cache
def _all_prices() -> tuple[HostedPrice, ...]:
    tables = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    try:
        found = tuple(HostedPrice(**one) for one in tables["price"])
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{_FILE.name}: a table of [[price]] is wrong: {error}") from error
    return tuple(sorted(found, key=lambda one: one.date))


def hosted_prices(today: date) -> list[HostedPrice]:
    """The price of each API that held on ``today``, by name."""
    latest = {one.name: one for one in _all_prices() if one.date <= today}
    return [latest[name] for name in sorted(latest)]
