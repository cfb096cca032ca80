"""The policy of capacity (dray/driver/capacity/policy.py) on spot markets: what meeting a deadline costs.

::

    python -m tests.benchmarks.deadline
    python -m tests.benchmarks.deadline --traces FOLDER

FOLDER holds recorded traces, *.json as in the repository skypilot-org/spot-traces.

A job of known size has a deadline. Time goes in steps of one cold start: a replica that starts answers
nothing in its first step. Beside the policy are: Uniform Progress as the paper has it ("Can't Be Late",
NSDI'24), greedy spot (spot alone until only on-demand replicas can meet the deadline), and on-demand replicas
alone. The oracle knows the trace, and finds the cheapest run that meets the deadline by dynamic programming.
A cost of 1.10 is 10% dearer than the oracle's. Spot costs 0.35 of on-demand.

Traces are generated from statistics of AWS V100 in 9 zones, in 2023: spot was there for 17% to 90% of the
time, in stretches of 0.7 to 10.4 hours in the mean, most of them shorter. Seeds are in the figures.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, quantiles

from dray.driver.capacity.policy import Situation, SpotHistory, decide
from tests.benchmarks import results
from tests.benchmarks.results import Report, Table, Target, say
from tests.support.spot_market import (
    Counts,
    Market,
    Policy,
    View,
    Zones,
    generated,
    oracle,
    recorded,
    replay,
)

STEP_SECONDS = 600.0
STEPS = 300
TIGHTNESS = (0.92, 0.7, 0.4)
"""Share of the time until the deadline that the work takes on one replica, or on half of those allowed."""
ASKED = 1.15
_MARKETS = ((0.2, 14), (0.45, 30), (0.7, 60), (0.9, 120))  # share of the time, steps of a stretch


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job on one trace; ``seed`` None for a recorded one, ``tightness`` as in ``TIGHTNESS``."""

    market: Market
    source: str
    tightness: float
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What one policy came to in one case: its dollars over the oracle's."""

    name: str
    source: str
    trace: str
    seed: int | None
    most: int
    tightness: float
    cost: float
    missed: bool


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="deadline")
    measures = []
    for case in _cases(arguments):
        measures += _measured(case)
    report.raw = [asdict(one) for one in measures]
    sources = list(dict.fromkeys(one.source for one in measures))
    report.tables = [_table(source, [one for one in measures if one.source == source]) for source in sources]
    report.targets = [] if arguments.quick else _targets(measures, sources)
    report.notes = [
        "Cost is dollars over those of the oracle; a run that missed its deadline counts in `missed` alone. "
        f"Steps of {STEP_SECONDS / 60:.0f} minutes, {STEPS} until the deadline; seed {arguments.seed}.",
        "tightness: the share of the time that the work takes on one replica where one is allowed, else on "
        "half of those that are allowed.",
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--traces", type=Path, default=None, help="folder of recorded traces")
    parser.add_argument("--seed", type=int, default=None, help="of the generated traces (drawn, and printed)")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 10)
    arguments.seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    say(f"seed {arguments.seed}")
    return arguments


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    most_allowed = (4,) if arguments.smoke else (1, 4) if arguments.quick else (1, 4, 8)
    steps = STEPS // 10 if arguments.smoke else STEPS
    for most in most_allowed:
        for share, up in _MARKETS:
            zones = Zones(zones=1 if most == 1 else 4, each=max(most // 4, 1), share=share, up=up)
            for tightness in TIGHTNESS:
                for repeat in range(arguments.repeats):
                    seed = arguments.seed + 7919 * repeat + most
                    trace = generated(zones, steps, seed)
                    yield _case(trace, most, tightness, "generated", f"{share:.0%} of the time", seed)
    if arguments.traces is not None:
        for path in sorted(arguments.traces.glob("*.json")):
            yield from _recorded_cases(path, steps)


def _recorded_cases(path: Path, steps: int) -> Iterator[Case]:
    trace = recorded(path, STEP_SECONDS)
    starts = range(0, len(trace) - steps, max((len(trace) - steps) // 5, 1))
    for most in (4, 8) if max(trace) > 1 else (1,):
        for tightness in TIGHTNESS:
            for at in starts:
                yield _case(trace[at : at + steps], most, tightness, "recorded", f"{path.stem}@{at}", None)


def _case(trace: list[int], most: int, tightness: float, source: str, name: str, seed: int | None) -> Case:
    each = 1.0 if most == 1 else most / 2
    market = Market(
        trace=trace, work=int(len(trace) * tightness * each), deadline=len(trace), most=most, name=name
    )
    return Case(market=market, source=source, tightness=tightness, seed=seed)


def _measured(case: Case) -> list[Measure]:
    """All policies; nothing where no policy can meet the deadline."""
    best = oracle(case.market)
    if best is None:
        return []
    found = []
    for name, policy_of in POLICIES.items():
        run = replay(case.market, policy_of(case.market))
        found.append(
            Measure(
                name=name,
                source=case.source,
                trace=case.market.name,
                seed=case.seed,
                most=case.market.most,
                tightness=case.tightness,
                cost=round(run.dollars / best, 4),
                missed=run.finished is None,
            )
        )
    return found


# -- the policies -----------------------------------------------------------------------------------


def of_dray(market: Market) -> Policy:
    """The policy of the driver, which counts the spot replicas that work as those that it had."""
    history = SpotHistory()

    def policy(view: View) -> Counts:
        history.add(wanted=market.most - view.on_demand, had=view.spot, seconds=STEP_SECONDS)
        decision = decide(situation(view, history.expected(market.most)))
        return decision.spot, decision.on_demand

    return policy


def situation(view: View, expected: float) -> Situation:
    """What the driver would see; a unit of work is a step of one replica."""
    market = view.market
    return Situation(
        left=view.left,
        rate=1 / STEP_SECONDS,
        elapsed=view.step * STEP_SECONDS,
        deadline=market.deadline * STEP_SECONDS,
        cold_start=STEP_SECONDS,
        step=STEP_SECONDS,
        most=market.most,
        spot=view.spot,
        on_demand=view.on_demand,
        spot_to_be_had=view.to_be_had,
        spot_expected=expected,
        spot_price=market.spot_price,
        on_demand_price=market.on_demand_price,
    )


def uniform_progress(market: Market) -> Policy:
    """The paper's rules: spot if there is any; on demand from behind the line until ahead by two starts."""
    slope = market.work / market.deadline
    on_line = math.ceil(slope)
    behind = False

    def policy(view: View) -> Counts:
        nonlocal behind
        if _is_late(view):
            return view.spot, market.most - view.spot
        ahead = market.work - view.left - slope * view.step
        behind = ahead < 0 or (behind and ahead < 2 * slope)
        return view.to_be_had, max(on_line - view.to_be_had, 0) if behind else 0

    return policy


def greedy(market: Market) -> Policy:
    """Spot alone, until only on-demand replicas are sure to meet the deadline."""

    def policy(view: View) -> Counts:
        return (view.spot, market.most - view.spot) if _is_late(view) else (view.to_be_had, 0)

    return policy


def on_demand_alone(market: Market) -> Policy:
    """As many from the beginning as meet the deadline."""
    count = max(min(market.most, math.ceil(market.work / (market.deadline - 1))), 1)
    return lambda view: (0, count)


def _is_late(view: View) -> bool:
    most = view.market.most
    return most * (view.market.deadline - view.step) - view.left < 2 * most


POLICIES: dict[str, Callable[[Market], Policy]] = {
    "dray": of_dray,
    "uniform progress": uniform_progress,
    "greedy spot": greedy,
    "on demand": on_demand_alone,
}


# -- what is told -----------------------------------------------------------------------------------


def _table(source: str, measures: Sequence[Measure]) -> Table:
    groups: dict[tuple[str, int, float], list[Measure]] = defaultdict(list)
    for one in measures:
        groups[one.name, one.most, one.tightness].append(one)
        groups[one.name, 0, 0.0].append(one)
    order = sorted({(most, tightness) for _, most, tightness in groups})
    rows = [
        [
            f"at most {most}, {tightness:g}" if most else "all",
            str(len(groups["dray", most, tightness])),
            *(_cell(groups[name, most, tightness]) for name in POLICIES),
        ]
        for most, tightness in order
    ]
    title = f"Cost over the oracle's, {source} traces: mean (95th percentile, highest), deadlines missed"
    return Table(title=title, header=("replicas, tightness", "runs", *POLICIES), rows=rows)


def _cell(measures: Sequence[Measure]) -> str:
    costs = [one.cost for one in measures if not one.missed]
    missed = sum(one.missed for one in measures)
    if not costs:
        return f"{missed} missed"
    high = quantiles(costs, n=20, method="inclusive")[-1] if len(costs) > 1 else costs[0]
    told = f"{mean(costs):.3f} ({high:.2f}, {max(costs):.2f})"
    return f"{told}, {missed} missed" if missed else told


def _targets(measures: Sequence[Measure], sources: Sequence[str]) -> list[Target]:
    found = []
    for source in sources:
        ours = [one for one in measures if one.source == source and one.name == "dray"]
        cost, missed = mean(one.cost for one in ours), sum(one.missed for one in ours)
        found += [
            Target(name=f"{source}: cost over the oracle's, mean", value=cost, bound=ASKED, at_least=False),
            Target(name=f"{source}: deadlines missed", value=missed, bound=0, at_least=False),
        ]
    return found


if __name__ == "__main__":
    sys.exit(main())
