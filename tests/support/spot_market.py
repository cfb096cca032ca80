"""A market of spot machines in steps, for policies of capacity: traces, replays, and the best in hindsight.

A step is as long as a cold start: a replica answers nothing in its first step, and one unit in each later
one. In a step, at most ``trace[step]`` spot replicas can be held; those above are taken back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

Counts = tuple[int, int]
"""Spot and on-demand replicas."""


@dataclass(frozen=True, kw_only=True)
class Market:
    """A job in a market. ``work`` is in steps of one replica, ``deadline`` in steps, prices a step's."""

    trace: Sequence[int]
    work: int
    deadline: int
    most: int
    spot_price: float = 0.35
    on_demand_price: float = 1.0
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class View:
    """What a policy sees before a step: the market's present, and nothing of its future."""

    market: Market
    step: int
    left: int
    spot: int
    on_demand: int
    to_be_had: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a policy came to. ``finished`` is None where work was left at the deadline."""

    dollars: float
    finished: int | None
    on_demand_steps: int


Policy = Callable[[View], Counts]


def replay(market: Market, policy: Policy) -> Run:
    """Run a job by a policy."""
    spot = on_demand = on_demand_steps = 0
    left, dollars = market.work, 0.0
    for step in range(market.deadline):
        if left <= 0:
            return Run(dollars=dollars, finished=step, on_demand_steps=on_demand_steps)
        to_be_had = min(market.trace[step], market.most)
        spot = min(spot, to_be_had)
        view = View(market=market, step=step, left=left, spot=spot, on_demand=on_demand, to_be_had=to_be_had)
        new_spot, new_on_demand = policy(view)
        new_spot = min(new_spot, to_be_had)
        if new_spot + new_on_demand > market.most:
            raise ValueError(f"{new_spot} and {new_on_demand} replicas are more than {market.most}")
        left -= min(spot, new_spot) + min(on_demand, new_on_demand)
        spot, on_demand = new_spot, new_on_demand
        dollars += spot * market.spot_price + on_demand * market.on_demand_price
        on_demand_steps += on_demand
    done = market.deadline if left <= 0 else None
    return Run(dollars=dollars, finished=done, on_demand_steps=on_demand_steps)


def oracle(market: Market) -> float | None:
    """Dollars of the cheapest run that meets the deadline, for one who knows the trace; None for none."""
    states = [(s, o) for s, o in product(range(market.most + 1), repeat=2) if s + o <= market.most]
    cost = np.full((len(states), market.work + 1), np.inf)
    cost[states.index((0, 0)), 0] = 0.0
    for step in range(market.deadline):
        cost = _next(cost, states, market, min(market.trace[step], market.most))
    best = float(cost[:, market.work].min())
    return best if np.isfinite(best) else None


def _next(cost: np.ndarray, states: list[Counts], market: Market, to_be_had: int) -> np.ndarray:
    """The least dollars for each state and each amount of work, one step later."""
    found = np.full_like(cost, np.inf)
    for to, (spot, on_demand) in enumerate(states):
        if spot > to_be_had:
            continue
        price = spot * market.spot_price + on_demand * market.on_demand_price
        by_gain: dict[int, list[int]] = {}
        for origin, (before, before_on_demand) in enumerate(states):
            by_gain.setdefault(min(before, spot) + min(before_on_demand, on_demand), []).append(origin)
        for gain, origins in by_gain.items():
            source = cost[origins].min(axis=0)
            target = found[to]
            if gain:
                np.minimum(target[gain:], source[:-gain] + price, out=target[gain:])
                target[-1] = min(target[-1], float(source[-gain:].min()) + price)
            else:
                np.minimum(target, source + price, out=target)
    return found


# -- traces ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Zones:
    """Statistics of a market: ``zones`` of ``each`` machines, there for ``share`` of the time.

    The stretches in which a zone has machines last ``up`` steps in the mean, and are lognormal with
    ``spread``: many are short, a few long.
    """

    zones: int
    each: int
    share: float
    up: float
    spread: float = 1.3


def generated(zones: Zones, steps: int, seed: int) -> list[int]:
    """A trace with these statistics."""
    rng = np.random.default_rng(seed)
    down = zones.up * (1 - zones.share) / zones.share
    total = np.zeros(steps, int)
    for _ in range(zones.zones):
        there = bool(rng.random() < zones.share)
        at = 0
        while at < steps:
            mean = zones.up if there else down
            draw = rng.lognormal(np.log(mean) - zones.spread**2 / 2, zones.spread)
            length = max(int(np.ceil(draw)), 1)
            if there:
                total[at : at + length] += zones.each
            at += length
            there = not there
    return [int(one) for one in total]


def recorded(path: Path, step_seconds: float) -> list[int]:
    """A trace as skypilot-org/spot-traces has them: ``metadata.gap_seconds`` and ``data``.

    A step has as many machines as there were at its worst moment.
    """
    found = json.loads(path.read_bytes())
    each = max(round(step_seconds / found["metadata"]["gap_seconds"]), 1)
    data = found["data"]
    return [min(data[at : at + each]) for at in range(0, len(data) - each + 1, each)]
