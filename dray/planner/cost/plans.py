"""All plans of a job over a catalogue, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from math import ceil

from dray.planner.catalogue import Catalogue, Instance, Price
from dray.planner.cost.choices import Refusal, refusal, settings, tunings
from dray.planner.cost.demand import Demand, Setting
from dray.planner.cost.efficiency import DOUBT_FACTOR, PARALLEL_FACTOR, Phi, PhiFor, prior
from dray.planner.cost.limits import Limits, allowed
from dray.planner.cost.plan import Offer, Plan, aged, evaluate
from dray.planner.cost.step import Replica
from dray.planner.cost.wording import nearest_sentence, nothing_fits, why_first
from dray.planner.models import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """``plans`` within the limits, the cheapest first; ``why`` says in a sentence why the first one is first.

    ``refusals``: configurations that cannot run. ``nearest``: where no plan keeps deadline and budget, the
    fastest one and the cheapest one.
    """

    plans: tuple[Plan, ...]
    refusals: tuple[Refusal, ...]
    nearest: tuple[Plan, ...]
    why: str


def plans(
    demand: Demand,
    model: ModelFacts,
    catalogue: Catalogue,
    limits: Limits | None = None,
    *,
    today: date,
    phi: PhiFor = prior,
) -> Plans:
    """Every configuration that can run the job, with seconds and dollars, and why others cannot.

    Args:
        model: as its checkpoint is; ``limits.weights`` may name other formats.
        today: the day whose prices hold.
        phi: measured over predicted rate, by device and format of the weights.

    Raises:
        ConfigError: the limits name hardware that the catalogue lacks.
    """
    limits = limits or Limits()
    found: list[Plan] = []
    refusals: list[Refusal] = []
    for instance in allowed(catalogue, limits):
        markets = list(_markets(instance, limits, today))
        if not markets:
            refusals.append(_priceless(instance, limits, today))
            continue
        for setting in settings(instance, model, limits):
            facts = model.in_format(setting.weights)
            problem = refusal(instance, facts, setting, demand)
            if problem is not None:
                refusals.append(problem)
            else:
                found += _of_setting(_Case(instance, facts, setting, demand, limits), markets, phi)
    found.sort(key=lambda plan: (plan.dollars.likely, plan.seconds.likely, plan.name))
    return _within(found, refusals, limits)


def best_of_each(found: Sequence[Plan]) -> list[Plan]:
    """The first plan of each instance, market and number of machines, in the same order: for a short table."""
    first: dict[tuple[str, bool, int], Plan] = {}
    for plan in found:
        first.setdefault((plan.instance.name, plan.spot, plan.machines), plan)
    return list(first.values())


@dataclass(frozen=True, slots=True)
class _Market:
    spot: bool
    price: Price
    notes: tuple[str, ...]


def _markets(instance: Instance, limits: Limits, today: date) -> Iterator[_Market]:
    """On demand and spot, where there is a price; a price of the user's stands for the one on demand."""
    own = limits.prices.get(instance.name)
    if own is not None:
        yield _Market(False, Price(likely=own, low=own, high=own, day=today, source="user"), ())
        return
    for spot, price in ((False, instance.list_price(today)), (True, instance.spot_price(today))):
        if price is not None and (limits.spot or not spot):
            yield _Market(spot, *aged(price, today))


def _priceless(instance: Instance, limits: Limits, today: date) -> Refusal:
    spot = limits.spot or instance.spot_price(today) is None
    reason = f"No price of {today} or before is known" if spot else "Only spot has a price, which is excluded"
    return Refusal(
        instance=instance.name,
        setting=None,
        reason=f"{reason}: give one with --price {instance.name}=DOLLARS.",
    )


@dataclass(frozen=True, slots=True)
class _Case:
    instance: Instance
    model: ModelFacts
    setting: Setting
    demand: Demand
    limits: Limits


def _of_setting(case: _Case, markets: Sequence[_Market], phi: PhiFor) -> Iterator[Plan]:
    share, notes = _phi_of(case, phi)
    for setting in tunings(case.setting, case.limits):
        link = case.instance.link
        replica = Replica(model=case.model, device=case.instance.device, link=link, setting=setting)

        @cache
        def planned(machines: int, market: _Market, replica: Replica = replica) -> Plan:
            offer = Offer(instance=case.instance, machines=machines, spot=market.spot, price=market.price)
            plan = evaluate(replica, case.demand, offer, share, case.limits.head_hourly)
            return replace(plan, notes=case.model.notes + notes + market.notes)

        for market in markets:
            for machines in _machines(planned(1, market), case.limits):
                yield planned(machines, market)


def _phi_of(case: _Case, phi: PhiFor) -> tuple[Phi, tuple[str, ...]]:
    """Phi of a configuration, wider for several devices and for unproven figures; and what to say of that."""
    device = case.instance.device
    share, notes = phi(device.name, case.setting.weights), []
    if case.setting.devices > 1:
        share = share.widened(PARALLEL_FACTOR, "several devices in a replica")
    if device.doubts:
        share = share.widened(DOUBT_FACTOR, "figures without a source")
        notes.append(f"{device.name}: {', '.join(device.doubts)} are not backed by a measurement.")
    return share, tuple(notes)


def _machines(alone: Plan, limits: Limits) -> list[int]:
    """Numbers of machines to look at: powers of two, and the fewest that may keep the deadline."""
    if not alone.instance.boot:
        return [1]
    counts = {2**power for power in range(limits.max_machines.bit_length())}
    if limits.deadline is not None:
        time = alone.time
        left = limits.deadline - time.cold_start - time.tail
        if left > 0:
            counts.add(ceil((time.work + time.interrupted) / left))
    return sorted(count for count in counts if 1 <= count <= limits.max_machines)


def _within(found: list[Plan], refusals: list[Refusal], limits: Limits) -> Plans:
    """The plans that keep deadline and budget in the likely case, and what to say."""
    kept = [plan for plan in found if _keeps(plan, limits)]
    nearest: list[Plan] = []
    if kept:
        why = why_first(best_of_each(kept), limits)
    elif found:
        nearest = [min(found, key=lambda plan: plan.seconds.likely), found[0]]
        why = nearest_sentence(*nearest, limits)
    else:
        why = nothing_fits(refusals)
    return Plans(plans=tuple(kept), refusals=tuple(refusals), nearest=tuple(nearest), why=why)


def _keeps(plan: Plan, limits: Limits) -> bool:
    on_time = limits.deadline is None or plan.seconds.likely <= limits.deadline
    return on_time and (limits.budget is None or plan.dollars.likely <= limits.budget)
