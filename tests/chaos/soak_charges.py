"""I6 of the soak: what the losses of a run were charged to, and that each was charged once."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dray.store import Attempt, Charge, own_event
from tests.chaos.soak_plan import Fault, Kind
from tests.chaos.soak_run import Run
from tests.support.history import read_history

_NOTICE_SECONDS = 20.0
"""A death so long before a run's end is charged: the driver first waits for shard tasks that stand still."""
_TOLERATED = {"DONE", "NOT_THERE", "CLAIMED_AGAIN"}


@dataclass(frozen=True, kw_only=True)
class Charged:
    """What a run's charges came to.

    ``unsure`` counts charges for a replica of which no process could tell whether it went alone or with its
    node. ``held`` counts the losses that had to be charged, by the kind of their faults, and were.
    """

    unsure: int = 0
    held: Counter[str] = field(default_factory=Counter)


def check_charges(run: Run) -> Charged:
    """I6: charged is what the table of causes charges, once for each loss."""
    faults, charges, attempts = run.faults, run.opened().charges(run.job), run.opened().attempts(run.job)
    killed = {f"replica {fault.replica}" for fault in faults if fault.kind is Kind.REPLICA}
    lost = {f"node {fault.node}" for fault in faults if fault.kind is Kind.NODE}
    given_up = {f"node {node}" for node in run.given_up}
    own = own_losses(attempts)
    at_engines = {own.get(one.event, one.event) for one in charges if one.budget in ("model", "replica")}
    at_nodes = {own.get(one.event, one.event) for one in charges if one.budget in ("infra", "node")}
    other = {one.budget for one in charges} - {"model", "replica", "infra", "node"}
    other -= {"oom"} if run.plan.memory else set()
    assert not other, f"I6: charged to {other}"
    # A replica of which Ray said in time neither how it died nor that its node lives.
    unsure = {event for event in at_nodes if event.startswith("replica ")}
    on_nodes = {f"replica {name}" for fault in faults if fault.kind is Kind.NODE for name in fault.replicas}
    on_nodes |= {f"replica {row.name}" for row in run.opened().replicas(run.job) if row.node in run.given_up}
    assert unsure <= killed | on_nodes, f"I6: lost without a kill: {unsure - killed - on_nodes}"
    strange = at_nodes - lost - unsure - given_up
    announced = {fault.node: str(fault.kind) for fault in faults if fault.kind in (Kind.OBEYED, Kind.LYING)}
    dead = {f"node {name}": why for name, why in run.cloud.raylets.dead().items()}
    said = {event: dead.get(event) for event in strange}
    assert not strange, f"I6: nodes that no fault killed, what Ray says: {said}; announced: {announced}"
    deaths = at_engines - killed
    allowed = len(run.plan.poison) * (math.log2(run.rows) + 4)
    assert len(deaths) <= allowed, f"I6: {len(deaths)} deaths of engines, {allowed:.0f} by poison: {deaths}"
    _check_causes(run)
    twice = doubled(charges, own, faults)
    assert not twice, f"I6: charged more than once for one loss: {twice}"
    last = max(line.at for line in read_history(run.history, run.job))
    held: Counter[str] = Counter()
    for fault, expected in owed(faults, run.given_up, last):
        assert expected & (at_engines | at_nodes), f"I6: no budget has a charge for {fault}"
        held[str(fault.kind)] += 1
    return Charged(unsure=len(unsure), held=held)


def own_losses(attempts: Sequence[Attempt]) -> dict[str, str]:
    """What a shard task charges its attempt's own loss to, and the driver's name for that loss.

    A shard task charges it when it hears no verdict, of a driver that stands still.
    """
    return {own_event(one.shard, one.epoch): f"replica {one.replica}" for one in attempts}


def doubled(
    charges: Sequence[Charge], own: Mapping[str, str], faults: Sequence[Fault]
) -> dict[tuple[str, str], list[str]]:
    """Losses that one budget was charged for more than once: the loss and the budget, and the events.

    ``own``: see :func:`own_losses`. While a driver stands still, each shard task of a replica charges its own
    loss. The charge of a driver replaces these; where that driver has lost its job, they stay.
    """
    killed = {fault.replica for fault in faults if fault.kind is Kind.REPLICA}
    with_node = {
        f"replica {name}": f"node {fault.node}"
        for fault in faults
        if fault.kind is Kind.NODE
        for name in fault.went
        if name not in killed
    }
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for one in charges:
        loss = own.get(one.event, one.event)
        found[with_node.get(loss, loss), one.budget].append(one.event)
    stood = any(fault.kind is Kind.STALLED for fault in faults)
    return {
        loss: events
        for loss, events in found.items()
        if len(events) > 1 and not (stood and own.keys() >= set(events))
    }


def owed(faults: Sequence[Fault], given_up: Collection[str], last: int) -> list[tuple[Fault, set[str]]]:
    """Losses that have to be charged, each with the events of which there must be one.

    They came in time before the run's end (``last``, in nanoseconds) and before their driver's.
    """
    announced = {fault.node for fault in faults if fault.kind in (Kind.OBEYED, Kind.LYING)}
    killed = {fault.node for fault in faults if fault.kind is Kind.NODE} | set(given_up)
    drivers = [fault.at for fault in faults if fault.kind is Kind.DRIVER]
    within = _NOTICE_SECONDS * 1e9
    found = []
    for fault in faults:
        # Too near to the end, or after it, or too near to its driver's: no driver heard of it in time.
        unheard = last - fault.at < within or any(0 <= at - fault.at < within for at in drivers)
        if unheard or fault.node in announced:
            continue
        if fault.kind is Kind.REPLICA and fault.node not in killed:
            found.append((fault, {f"replica {fault.replica}"}))
        elif fault.kind is Kind.NODE and fault.held:
            found.append((fault, {f"node {fault.node}", *(f"replica {name}" for name in fault.replicas)}))
    return found


def _check_causes(run: Run) -> None:
    kinds = {fault.kind for fault in run.faults}
    causes = {one.cause for one in run.opened().attempts(run.job)} - _TOLERATED
    explained: dict[str, bool] = {
        "SPOT": bool(kinds & {Kind.OBEYED, Kind.LYING}),
        "NODE_LOSS": bool(kinds & {Kind.NODE, Kind.REPLICA} or run.given_up),
        "ENGINE_CRASH": Kind.REPLICA in kinds or bool(run.plan.poison),
        "OOM": run.plan.memory,
        "POISON": bool(run.plan.poison),
        "DRIVER_LOST": bool(kinds & {Kind.DRIVER, Kind.STALLED}),
        "LEASE_EXPIRED": Kind.TASK in kinds,
        "STORE_TRANSIENT": Kind.TASK in kinds,  # a lease that lapsed by its holder's own clock
    }
    strange = {str(cause) for cause in causes if not explained.get(str(cause), False)}
    assert not strange, f"I6: attempts ended by {strange}, and the run has no such fault"
