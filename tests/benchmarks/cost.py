"""What the cost model says a self-run batch costs, beside the prices of hosted batch APIs.

::

    python -m tests.benchmarks.cost
    python -m tests.benchmarks.cost --today 2026-11-25 --rows 1000000
    python -m tests.benchmarks.cost --all-hardware     also GPUs with figures that no source backs

Requests have 2,000 tokens in and 100 out; 80% of the input is one shared prefix, or none is. Models are Llama
3.1 8B and 70B in fp8. Nothing is measured: plans, rates and dollars are predictions (docs/planning.md), and
prices are those of the planner's catalogue, each with its day and source. The first setting is the published
comparison of September 2024, with the hardware that it took; the others are the cheapest of the catalogue,
of GPUs whose every figure has a source.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from dray.planner import catalogue
from dray.planner.catalogue import HostedPrice, hosted_prices, load_catalogue
from dray.planner.cost import Demand, Interval, Plan, PlanLimits, plans
from dray.planner.models import model_facts
from tests.benchmarks import results
from tests.benchmarks.results import Report, Table, Target, number
from tests.support.model_configs import LLAMA_8B, LLAMA_70B
from tests.support.reference_points import CLAIM_DAY, CLAIMS

INPUT, OUTPUT = 2000, 100
SHARED = (0.0, 0.8)
ROWS = 1_000_000
MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # the model's config, and the hosted APIs that it stands beside
    "Llama 3.1 8B": (LLAMA_8B, ("Bedrock Llama 3.1 8B", "GPT-4o mini", "GPT-5.4 nano")),
    "Llama 3.1 70B": (LLAMA_70B, ("Bedrock Llama 3.1 70B",)),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """On which day prices hold, and what may be rented."""

    name: str
    day: date
    hardware: tuple[str, ...] = ()
    spot: bool = False


def per_thousand(plan: Plan) -> Interval:
    """Dollars of a thousand requests."""
    return plan.dollars.scaled(1e3 / plan.rows)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, and the cheapest plan for it."""

    setting: Setting
    model: str
    shared: float
    plan: Plan

    @property
    def dollars(self) -> float:
        """Of a thousand requests, in the likely case."""
        return per_thousand(self.plan).likely


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A case beside one hosted API, in dollars of a thousand requests."""

    case: Case
    api: HostedPrice
    hosted: float

    @property
    def times(self) -> float:
        """How many times as much the API asks."""
        return self.hosted / self.case.dollars

    @property
    def published(self) -> float | None:
        """The same as it was published, where it was."""
        if self.case.setting.day != CLAIM_DAY:
            return None
        return CLAIMS.get((self.case.shared, self.api.name))


def main() -> int:
    """Predict as the arguments say."""
    arguments = parse()
    found = cases(settings(arguments.today, doubtful=arguments.all_hardware), arguments.rows)
    beside = [one for case in found for one in beside_hosted(case)]
    report = Report(name="cost", raw=[_raw(one) for one in beside])
    report.tables = [_plans(found), _beside(beside), _sources(found, beside)]
    report.targets = _targets(beside)
    report.notes = [
        "Predicted, nothing of it is measured. Rates have the phi of a model without a measured run (0.85; "
        "the intervals take 0.65 to 1.05). All dollars are of a thousand requests.",
        f"{arguments.rows:,} requests of {INPUT:,} tokens in and {OUTPUT} out, weights in fp8. Cold start "
        "and tail are paid, other nodes are not.",
        "The published ratios are of one machine, and count the engine's time alone. A shared prefix does "
        "not change an API's price.",
        "The GPUs: "
        + (
            "all of the catalogue."
            if arguments.all_hardware
            else f"{', '.join(proven())}; every figure of "
            "theirs has a source. `--all-hardware` takes the others, too."
        ),
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--rows", type=int, default=ROWS, help="of the job; few rows pay a start for little")
    parser.add_argument(
        "--all-hardware", action="store_true", help="also GPUs with figures that no source backs"
    )
    parser.add_argument(
        "--today", type=date.fromisoformat, default=date.today(), help="the day whose prices hold"
    )
    return parser.parse_args(argv)


def proven() -> tuple[str, ...]:
    """GPUs of the catalogue of which each figure has a source."""
    return tuple(sorted(name for name, one in load_catalogue().devices().items() if not one.doubts))


def settings(today: date, *, doubtful: bool) -> list[Setting]:
    """That of the publication, and two of today."""
    hardware = () if doubtful else proven()
    return [
        Setting(name="on demand, L40S alone", day=CLAIM_DAY, hardware=("L40S",)),
        Setting(name="on demand", day=today, hardware=hardware),
        Setting(name="spot allowed", day=today, hardware=hardware, spot=True),
    ]


def cases(chosen: Sequence[Setting], rows: int) -> list[Case]:
    """The cheapest plan of each setting, model and shared prefix."""
    found = []
    for setting in chosen:
        limits = PlanLimits(hardware=setting.hardware, spot=setting.spot, weights=("fp8",))
        for name, (config, _) in MODELS.items():
            for shared in SHARED:
                demand = Demand(rows=rows, input_tokens=INPUT, output_tokens=OUTPUT, hit_share=shared)
                best = plans(demand, model_facts(config), load_catalogue(), limits, today=setting.day).plans
                found.append(Case(setting=setting, model=name, shared=shared, plan=best[0]))
    return found


def beside_hosted(case: Case) -> Iterator[Beside]:
    """The case beside each API of its model that had a batch price on its day."""
    for api in hosted_prices(case.setting.day):
        dollars = api.dollars(INPUT, OUTPUT)
        if api.name in MODELS[case.model][1] and dollars is not None:
            yield Beside(case=case, api=api, hosted=1e3 * dollars)


def _targets(found: Sequence[Beside]) -> list[Target]:
    """Where the publication says a figure of an 8B model, the prediction is not far below it."""
    return [
        Target(
            name=f"{one.api.name}, {_percent(one.case.shared)} shared, {CLAIM_DAY}: predicted / published",
            value=one.times / one.published,
            bound=0.8 if one.case.model == "Llama 3.1 8B" else None,
        )
        for one in found
        if one.published is not None
    ]


def _plans(found: Sequence[Case]) -> Table:
    header = ("prices of", "market", "model", "shared prefix", "predicted cheapest plan", "requests/s", "$")
    rows = [
        [
            str(one.setting.day), one.setting.name, one.model, _percent(one.shared), one.plan.name,
            number(one.plan.requests_per_second.likely), _interval(one.plan),
        ]
        for one in found
    ]  # fmt: skip
    return Table(title="PREDICTED: the cheapest plans", header=header, rows=rows)


def _interval(plan: Plan) -> str:
    dollars = per_thousand(plan)
    return f"{dollars.likely:.3f} ({dollars.low:.3f}..{dollars.high:.3f})"


def _beside(found: Sequence[Beside]) -> Table:
    header = (
        *("prices of", "market", "model", "shared prefix", "hosted batch API", "$ of the API"),
        *("$ predicted", "times", "published"),
    )
    rows = [
        [
            str(one.case.setting.day), one.case.setting.name, one.case.model, _percent(one.case.shared),
            one.api.name, f"{one.hosted:.3f}", f"{one.case.dollars:.3f}", number(one.times),
            "" if one.published is None else number(one.published),
        ]
        for one in found
    ]  # fmt: skip
    return Table(title="PREDICTED: beside hosted batch prices", header=header, rows=rows)


def _sources(cases: Sequence[Case], found: Sequence[Beside]) -> Table:
    """Each price that stands above: its day, and where it is from."""
    titles = _titles()
    rented = {}
    for case in cases:
        price, market = case.plan.price, "spot" if case.plan.spot else "on demand"
        name = f"{case.plan.instance.name}, {market}"
        rented[name, price.day] = [
            name, f"{number(price.likely)} an hour", str(price.day), titles[price.source]
        ]  # fmt: skip
    hosted = {
        (one.api.name, one.api.date): [
            one.api.name,
            f"{one.api.batch_input:g} in, {one.api.batch_output:g} out, a million tokens",
            str(one.api.date),
            one.api.source,
        ]
        for one in found
    }
    rows = [table[key] for table in (rented, hosted) for key in sorted(table)]
    return Table(title="Prices, in dollars", header=("what", "price", "from", "source"), rows=rows)


def _titles() -> dict[str, str]:
    """Of the catalogue's sources by their keys."""
    file = Path(catalogue.__file__).with_name("hardware.toml")
    return {key: one["title"] for key, one in tomllib.loads(file.read_text())["source"].items()}


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _raw(one: Beside) -> dict[str, Any]:
    case = one.case
    return {
        "name": f"{case.model}, {_percent(case.shared)} shared, {case.setting.name}, {one.api.name}",
        "setting": asdict(case.setting),
        "plan": case.plan.name,
        "requests_per_second": asdict(case.plan.requests_per_second),
        "dollars_per_thousand": asdict(per_thousand(case.plan)),
        "hosted_dollars_per_thousand": one.hosted,
        "times": one.times,
        "published": one.published,
    }


if __name__ == "__main__":
    sys.exit(main())
