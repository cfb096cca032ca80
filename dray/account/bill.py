"""The bill of a job from the spans of its nodes: seconds and dollars by what they paid for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dray.account.spans import MICRO, PARTS, Span, part_of

_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the bill: node time in microseconds, and micro-dollars where the price is known."""

    name: str
    micros: int
    dollars_micros: int | None = None


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What was predicted for these rows: seconds from start to end, with an interval, and dollars.

    ``took`` is what the run took. ``reason`` says what the prediction rests on.
    """

    seconds: float
    took: float
    seconds_low: float
    seconds_high: float
    dollars: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Account:
    """A job's bill. Whole micro-units: the parts sum to ``node_micros`` and to ``dollars_micros``.

    ``price`` is in micro-dollars per node hour where all nodes have the same; ``source`` says where prices
    come from. ``dollars_micros`` is None where a node has no price. Tokens are those of the whole job.
    """

    node_micros: int
    gpu_seconds: float
    parts: tuple[Part, ...]
    dollars_micros: int | None = None
    price: int | None = None
    source: str = ""
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    predicted: Predicted | None = None

    @property
    def node_seconds(self) -> float:
        """Seconds of all nodes together."""
        return self.node_micros / MICRO

    @property
    def dollars(self) -> float | None:
        """Dollars in all, where the price is known."""
        return None if self.dollars_micros is None else self.dollars_micros / MICRO

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """Dollars per million prompt and completion tokens, where both are there."""
        tokens = self.prompt + self.completion
        return None if self.dollars is None or not tokens else self.dollars * 1e6 / tokens

    def as_dict(self) -> dict[str, Any]:
        """What ``dray run --json`` prints as ``cost``: figures of six decimals, which add up."""
        priced = self.dollars_micros is not None
        return {
            "dollars": self.dollars,
            "dollars_per_million_tokens": self.dollars_per_million_tokens,
            "price_per_node_hour": None if self.price is None else self.price / MICRO,
            "price_source": self.source or None,
            "node_seconds": self.node_seconds,
            "gpu_seconds": round(self.gpu_seconds, 6),
            "seconds": {part.name: part.micros / MICRO for part in self.parts},
            "parts": {p.name: (p.dollars_micros or 0) / MICRO for p in self.parts} if priced else None,
            "tokens": {"prompt": self.prompt, "cached": self.cached, "completion": self.completion},
            "predicted": None if self.predicted is None else dict(self.predicted.__dict__),
        }


@dataclass(frozen=True, slots=True)
class Exact:
    """Microseconds of node time, and micro-dollars, by part: fractions, nothing rounded."""

    micros: Mapping[str, Fraction]
    dollars: Mapping[str, Fraction] | None


def exact(spans: Sequence[Span]) -> Exact:
    """The sums of the spans by part. Dollars are None where a span has no price."""
    micros: dict[str, Fraction] = defaultdict(Fraction)
    dollars: dict[str, Fraction] = defaultdict(Fraction)
    by_kind: dict[tuple[str, int, int | None], int] = defaultdict(int)
    for span in spans:
        by_kind[part_of(span.phase), span.places, span.price] += span.micros
    for (part, places, price), amount in by_kind.items():
        micros[part] += Fraction(amount, places)
        dollars[part] += Fraction(amount * (price or 0), places * _HOUR * MICRO)
    priced = bool(spans) and all(price is not None for _, _, price in by_kind)
    return Exact(dict(micros), dict(dollars) if priced else None)


def account_of(
    spans: Sequence[Span], *, source: str = "", tokens: tuple[int, int, int] = (0, 0, 0)
) -> Account:
    """The bill; ``tokens`` are prompt, cached and completion tokens."""
    found = exact(spans)
    micros = whole(found.micros)
    dollars = None if found.dollars is None else whole(found.dollars)
    prices = {span.price for span in spans}
    gpus = sum((Fraction(span.micros, span.places) * Fraction(span.gpus) for span in spans), Fraction())
    return Account(
        node_micros=sum(micros.values()),
        gpu_seconds=float(gpus / MICRO),
        parts=tuple(
            Part(
                name=name,
                micros=micros.get(name, 0),
                dollars_micros=None if dollars is None else dollars.get(name, 0),
            )
            for name in PARTS
        ),
        dollars_micros=None if dollars is None else sum(dollars.values()),
        price=next(iter(prices)) if len(prices) == 1 else None,
        source=source,
        prompt=tokens[0],
        cached=tokens[1],
        completion=tokens[2],
    )


def whole(amounts: Mapping[str, Fraction]) -> dict[str, int]:
    """Whole numbers that sum to the rounded sum; what is left over goes to the largest remainders."""
    floors = {name: amount.numerator // amount.denominator for name, amount in amounts.items()}
    left = round(sum(amounts.values(), Fraction())) - sum(floors.values())
    by_remainder = sorted(amounts, key=lambda name: (floors[name] - amounts[name], name))
    for name in by_remainder[:left]:
        floors[name] += 1
    return floors
