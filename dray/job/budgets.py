"""What losses are charged to, in the store: the scopes of the budgets, and what names a loss."""

from __future__ import annotations

from collections.abc import Iterable

from dray.spot.causes import Decision
from dray.spot.effects import ALLOWANCES, Budget
from dray.store import Charge, Store

_OF_NODE = frozenset({Budget.NODE, Budget.REPLICA})


def spent(store: Store, job_id: str, node: str | None, *, event: str) -> dict[Budget, int]:
    """What was charged before this event, as :class:`dray.spot.causes.Facts` has it."""
    return {
        budget: store.spent(
            job_id, budget, scope=_scope(budget, node), within=ALLOWANCES[budget].within, besides=event
        )
        for budget in ALLOWANCES
        if ALLOWANCES[budget].limit is not None and (node or budget not in _OF_NODE)
    }


def charges(decision: Decision, node: str | None, *, event: str) -> list[Charge]:
    """What a decision charges. ``event`` names the loss: all who notice it name it alike."""
    return [
        Charge(budget=budget, scope=_scope(budget, node), event=event, cause=decision.cause)
        for budget in decision.effect.charges
        if ALLOWANCES[budget].limit is not None and (node or budget not in _OF_NODE)
    ]


def excluded(store: Store, job_id: str) -> set[str]:
    """Nodes that are to have no more replicas while another can: their budgets are spent."""
    found: set[str] = set()
    for budget in _OF_NODE:
        limit = ALLOWANCES[budget].limit
        assert limit is not None
        found.update(store.overspent(job_id, budget, above=limit, within=ALLOWANCES[budget].within))
    return found


def _scope(budget: Budget, node: str | None) -> str:
    return (node or "") if budget in _OF_NODE else ""


def names(found: Iterable[Charge]) -> str:
    """For people: ``infra, node``; ``nothing`` where nothing is charged."""
    return ", ".join(sorted({one.budget for one in found})) or "nothing"
