"""All plans of a job over a catalogue, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import ceil

from dray.planner.catalogue import Catalogue, Instance, Price
from dray.planner.cost.cases import Case, cases_of, cases_over_nodes
from dray.planner.cost.choices import Refusal, tunings
from dray.planner.cost.demand import Demand
from dray.planner.cost.efficiency import DOUBT_FACTOR, NODES_FACTOR, PARALLEL_FACTOR, Phi, PhiFor, prior
from dray.planner.cost.limits import SPOT, PlanLimits, allowed
from dray.planner.cost.memory import batch_size, block_tokens
from dray.planner.cost.plan import Offer, Plan, Terms, aged, evaluate
from dray.planner.cost.run_time import Rate, replica_rate, rows_of_replica
from dray.planner.cost.step import ModelledReplica, replica_on
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
    limits: PlanLimits | None = None,
    *,
    today: date,
    phi: PhiFor = prior,
) -> Plans:
    """Every configuration that can run the job, with seconds and dollars, and why others cannot.

    A replica is on one node; where no single node can run the model, on as few nodes as can.

    Args:
        model: as its checkpoint is; ``limits.weights`` may name other formats.
        today: the day whose prices hold.
        phi: measured over predicted rate, by device and format of the weights.

    Raises:
        ConfigError: the limits name hardware that the catalogue lacks.
    """
    limits = limits or PlanLimits()
    found: list[Plan] = []
    refusals: list[Refusal] = []
    rows, demand = demand, demand.by_sequence()
    offered: list[tuple[Instance, list[_Market]]] = []
    for instance in allowed(catalogue, limits):
        if markets := list(_markets(instance, limits, today)):
            offered.append((instance, markets))
        else:
            refusals.append(_priceless(instance, limits, today))
    for search in (cases_of, cases_over_nodes):
        for instance, markets in offered:
            tried = search(instance, model, demand, limits)
            refusals += tried.refusals
            found += [plan for case in tried.cases for plan in _of_setting(case, markets, phi)]
        if found:
            break
    found = [_of_rows(plan, rows) for plan in found]
    found.sort(key=_rank)
    return _within(found, refusals, limits)


def _rank(plan: Plan) -> tuple[float, float, int, int, str]:
    """The cheapest first; of equal ones the one with the smallest batch, which holds less memory."""
    one = plan.setting
    return plan.dollars.likely, plan.seconds.likely, one.max_num_seqs, one.max_num_batched_tokens, plan.name


def _of_rows(plan: Plan, demand: Demand) -> Plan:
    """A plan that was computed for sequences, with the figures of the rows that ask for them."""
    rate = plan.requests_per_second.scaled(1.0 / demand.sequences)
    return replace(plan, rows=demand.rows, tokens=demand.tokens, requests_per_second=rate)


def best_of_each(found: Sequence[Plan]) -> list[Plan]:
    """The first plan of each instance, market and number of machines, in the same order."""
    first: dict[tuple[str, bool, int], Plan] = {}
    for plan in found:
        first.setdefault((plan.instance.name, plan.spot, plan.machines), plan)
    return list(first.values())


@dataclass(frozen=True, slots=True)
class _Market:
    spot: bool
    price: Price
    notes: tuple[str, ...]


def _markets(instance: Instance, limits: PlanLimits, today: date) -> Iterator[_Market]:
    """The markets with a price, on demand and spot; a price of the user's replaces the catalogue's."""
    for spot, listed in ((False, instance.list_price(today)), (True, instance.spot_price(today))):
        own = limits.prices.get(f"{instance.name}{SPOT if spot else ''}")
        given = None if own is None else Price(likely=own, low=own, high=own, day=today, source="user")
        price = given or listed
        if price is not None and (limits.spot or not spot):
            yield _Market(spot, *_aged(price, instance, spot=spot, today=today))


def _aged(price: Price, instance: Instance, *, spot: bool, today: date) -> tuple[Price, tuple[str, ...]]:
    """The price, and notes of its age, which name the option with which the user gives one."""
    price, notes = aged(price, today)
    option = f"--price {instance.name}{SPOT if spot else ''}=DOLLARS"
    return price, tuple(f"{note.removesuffix('.')}: {option}." for note in notes)


def _priceless(instance: Instance, limits: PlanLimits, today: date) -> Refusal:
    spot = limits.spot or instance.spot_price(today) is None
    reason = f"No price of {today} or before is known" if spot else "Only spot has a price, which is excluded"
    return Refusal(
        instance=instance.name,
        setting=None,
        reason=f"{reason}: give one of your own for {instance.name}.",
    )


def _of_setting(case: Case, markets: Sequence[_Market], phi: PhiFor) -> Iterator[Plan]:
    share = _phi_of(case, phi)
    notes = _notes(case, share)
    for setting in tunings(case.setting, case.limits):
        rates = _Rates(replica_on(case.instance, case.model, setting), case.demand)
        for market in markets:
            said = notes + market.notes
            terms = Terms(phi=share, notes=said)
            yield from _offers(case, rates, market, terms)


def _offers(case: Case, rates: _Rates, market: _Market, terms: Terms) -> Iterator[Plan]:
    """The plans of one configuration in one market, by the number of machines."""

    def planned(machines: int) -> Plan:
        offer = Offer(instance=case.instance, machines=machines, spot=market.spot, price=market.price)
        rows = rows_of_replica(case.demand.rows, offer.replicas(rates.replica.setting))
        return evaluate(rates.replica, rates.of(rows), case.demand, offer, terms)

    alone = planned(case.setting.nodes)
    yield alone
    for machines in _more_machines(alone, case.limits):
        yield planned(machines)


class _Rates:
    """Rates of a replica by the rows that it gets: a few rows leave places of the batch empty."""

    def __init__(self, replica: ModelledReplica, demand: Demand) -> None:
        self.replica = replica
        self._demand = demand
        self._full = batch_size(replica.model, replica.device, replica.setting, demand)
        self._known: dict[float, Rate] = {}

    def of(self, rows: int) -> Rate:
        """The rate of a replica that gets so many rows of the job."""
        batch = min(self._full, float(rows))
        if batch not in self._known:
            self._known[batch] = replica_rate(self.replica, self._demand, batch)
        return self._known[batch]


_EXPERTS = (
    "No run of a mixture of experts was measured. Published rates were 0.44 to 0.64 of what the cost model "
    "says with a phi of 1: the job may take twice as long."
)


def _phi_of(case: Case, phi: PhiFor) -> Phi:
    """Phi of a configuration; wider where no run with its split, or on its hardware, was measured."""
    device = case.instance.device
    share = phi(device.name, case.setting.measured_as)
    if case.setting.devices > 1 and not share.of_split:
        share = share.widened(PARALLEL_FACTOR, "several devices in a replica")
    if case.setting.nodes > 1 and not share.of_split:
        share = share.widened(NODES_FACTOR, "several nodes in a replica")
    if share.assumed and (unmeasured := _unmeasured(case.model)):
        share = share.widened(DOUBT_FACTOR, f"{unmeasured}, of which no run was measured")
    if share.assumed and _doubts(case):
        share = share.widened(DOUBT_FACTOR, "figures without a source")
    return share


def _doubts(case: Case) -> tuple[str, ...]:
    """The figures of the hardware that the plan goes by, and no source backs."""
    return case.instance.device.doubts_of({part.arithmetic for part in case.model.parts})


def _unmeasured(model: ModelFacts) -> str | None:
    """What the model has that no run of dray's was measured with."""
    found = ["recurrent layers"] if model.recurrent else []
    found += ["sparse attention"] if any(one.chosen for one in model.attention) else []
    found += ["experts"] if model.experts else []
    return " and ".join(found) or None


def _notes(case: Case, share: Phi) -> tuple[str, ...]:
    """What a user must know of the model and the hardware of a plan."""
    device, ram = case.instance.device, case.instance.ram
    notes = list(case.model.notes)
    network, nodes = case.instance.network, case.setting.nodes
    if network is not None and nodes > 1:
        notes.append(
            f"Each replica is on {nodes} nodes, with {network.bandwidth / 1e9:.3g} GB/s between "
            "them as the plan has it: networks differ."
        )
    if doubts := _doubts(case):
        notes.append(f"{device.name}: no measurement backs {', '.join(doubts)}.")
    if case.model.experts and share.assumed:
        notes.append(_EXPERTS)
    length = case.setting.max_model_len
    if length is not None and case.limits.max_model_len is None:
        notes.append(
            f"A replica does not hold a request of the model's {case.model.max_length:,} tokens, so its "
            f"engine starts with max_model_len={length}: requests without max_tokens end there."
        )
    if case.shared and (block := block_tokens(case.model, case.setting)) > 1:
        notes.append(
            f"{case.shared:.0%} of the input is shared, {case.demand.hit_share:.0%} is counted as served: "
            f"vLLM serves prefixes of this model in blocks of {block:,} tokens, from the third request on."
        )
    if 0 < ram < case.model.weight_bytes:
        notes.append(
            f"{case.instance.name} has {ram / 1e9:,.0f} GB of memory: the weights' "
            f"{case.model.weight_bytes / 1e9:,.0f} GB cannot be staged in it."
        )
    return tuple(notes)


def _more_machines(alone: Plan, limits: PlanLimits) -> list[int]:
    """Numbers of machines above one: powers of two, and the fewest that may keep the deadline."""
    if not alone.instance.boot:
        return []
    nodes = alone.setting.nodes
    counts = {nodes * 2**power for power in range(limits.max_machines.bit_length())}
    if limits.deadline is not None:
        time = alone.time
        left = limits.deadline - time.cold_start - time.tail
        if left > 0:
            counts.add(nodes * ceil((time.work + time.interrupted) / left))
    return sorted(count for count in counts if nodes < count <= limits.max_machines)


def _within(found: list[Plan], refusals: list[Refusal], limits: PlanLimits) -> Plans:
    """The plans that keep deadline and budget in the likely case, and what to say."""
    kept = [plan for plan in found if _keeps(plan, limits)]
    nearest: list[Plan] = []
    if kept:
        why = why_first(best_of_each(kept), limits)
    elif found:
        fastest = min(found, key=lambda plan: plan.seconds.likely)
        nearest = [fastest, found[0]]
        why = nearest_sentence(fastest, found[0], limits)
    else:
        why = nothing_fits(refusals)
    return Plans(plans=tuple(kept), refusals=tuple(refusals), nearest=tuple(nearest), why=why)


def _keeps(plan: Plan, limits: PlanLimits) -> bool:
    on_time = limits.deadline is None or plan.seconds.likely <= limits.deadline
    return on_time and (limits.budget is None or plan.dollars.likely <= limits.budget)
