"""One plan: a configuration with its seconds and dollars, each as an interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from dray.planner.catalogue import Instance, Price
from dray.planner.cost.bill import Bill, bill_of
from dray.planner.cost.demand import Demand, Setting
from dray.planner.cost.efficiency import Phi
from dray.planner.cost.interval import Interval, spanning
from dray.planner.cost.run_time import COLD_START, Conditions, Rate, RunTime, rows_of_replica, run_time
from dray.planner.cost.step import ModelledReplica

START_ERROR = 0.2
"""By what share a start may be off that was measured on this machine: ten of one job differed by so much."""

_STALE_DAYS = 30
_STALE_FACTOR = 1.1
"""How far a price of more than 30 days may be off. AWS changed few by more, but P5 by 45% in June 2025."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``machines`` of an instance with ``replicas`` on them.

    ``requests_per_second`` of all replicas in the steady state, phi included. ``time`` and ``bill`` are those
    of the likely case; ``seconds`` and ``dollars`` span the best and the worst one.
    """

    instance: Instance
    machines: int
    replicas: int
    setting: Setting
    spot: bool
    price: Price
    phi: Phi
    rate: Rate
    time: RunTime
    bill: Bill
    seconds: Interval
    dollars: Interval
    requests_per_second: Interval
    tokens: float
    rows: int
    notes: tuple[str, ...] = ()

    @property
    def dollars_per_million_tokens(self) -> Interval:
        """Dollars per million of input and output tokens together."""
        return self.dollars.scaled(1e6 / self.tokens)

    @property
    def name(self) -> str:
        """A short name: machines, market, parallelism, formats, engine settings."""
        one = self.setting
        market = "spot" if self.spot else "on demand"
        nodes = f" over {one.nodes} nodes" if one.nodes > 1 else ""
        return (
            f"{self.machines} x {self.instance.name} {market}, TP {one.tensor_parallel} "
            f"PP {one.pipeline_parallel}{nodes}, weights {one.weights}, KV {one.kv}, "
            f"{one.max_num_seqs} sequences, {one.max_num_batched_tokens} batched tokens"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A number of machines at a price."""

    instance: Instance
    machines: int
    spot: bool
    price: Price

    def replicas(self, setting: Setting) -> int:
        """Replicas that fit on the machines."""
        return self.machines // setting.nodes * (self.instance.devices // setting.on_each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds of a plan beside its configuration: phi, the price of other nodes, and what to say."""

    phi: Phi
    notes: tuple[str, ...] = ()


def evaluate(replica: ModelledReplica, rate: Rate, demand: Demand, offer: Offer, terms: Terms) -> Plan:
    """The plan of one configuration at one offer: the likely, the best and the worst case of it."""
    replicas = offer.replicas(replica.setting)
    rows = rows_of_replica(demand.rows, replicas)
    used = replicas * replica.devices / (offer.machines * offer.instance.devices)
    cold, error = offer.instance.start_seconds, START_ERROR
    if cold is None:
        cold, error = COLD_START.seconds(replica.model.weight_bytes, boot=offer.instance.boot), 0.0
    cases: list[tuple[RunTime, Bill]] = []
    nodes = replica.setting.nodes
    for given, hourly in _cases(offer, nodes, terms.phi, demand.output_error, error):
        time = run_time(demand, rate, rows=rows, cold=cold, given=given)
        bill = bill_of(time, machines=offer.machines, hourly=hourly, used=used)
        cases.append((time, bill))
    (time, bill), *others = cases
    phi = terms.phi
    return Plan(
        instance=offer.instance,
        machines=offer.machines,
        replicas=replicas,
        setting=replica.setting,
        spot=offer.spot,
        price=offer.price,
        phi=phi,
        rate=rate,
        time=time,
        bill=bill,
        seconds=spanning(time.total, *(one.total for one, _ in others)),
        dollars=spanning(bill.total, *(one.total for _, one in others)),
        requests_per_second=Interval(phi.likely, phi.low, phi.high).scaled(replicas * rate.per_second),
        tokens=demand.tokens,
        rows=demand.rows,
        notes=terms.notes,
    )


def _cases(
    offer: Offer, nodes: int, phi: Phi, output_error: float, start_error: float
) -> Iterator[tuple[Conditions, float]]:
    """The likely case, then the best and the worst: all that is uncertain at one end.

    A replica is interrupted when any of its ``nodes`` is.
    """
    broken, price = offer.instance.interruptions, offer.price
    ends = (
        (phi.likely, broken.likely, 0.0, price.likely),
        (phi.high, broken.low, -1.0, price.low),
        (phi.low, broken.high, 1.0, price.high),
    )
    for share, interruptions, side, hourly in ends:
        yield (
            Conditions(
                phi=share,
                interruptions_per_hour=nodes * interruptions if offer.spot else 0.0,
                output_factor=1.0 + side * output_error,
                start_factor=1.0 + side * start_error,
            ),
            hourly,
        )


def aged(price: Price, today: date) -> tuple[Price, tuple[str, ...]]:
    """A price of more than 30 days with wider bounds, and what to say of it."""
    days = (today - price.day).days
    if days <= _STALE_DAYS:
        return price, ()
    wider = Price(
        likely=price.likely,
        low=price.low / _STALE_FACTOR,
        high=price.high * _STALE_FACTOR,
        day=price.day,
        source=price.source,
    )
    return wider, (f"Its price is {days} days old ({price.day}); give one of your own.",)
