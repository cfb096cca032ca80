"""What losses are charged to, in the store: the scopes of the budgets, and what names a loss."""

from __future__ import annotations

from dray.failures.causes import Decision
from dray.failures.effects import ALLOWANCES, Budget
from dray.failures.facts import Cause
from dray.places import split_place
from dray.store import Charge, Spending, Store

_OF_PLACE = frozenset({Budget.NODE, Budget.REPLICA})


def spent(store: Store, job_id: str, place: str | None, *, event: str) -> dict[Budget, int]:
    """What was charged before this event, as :class:`dray.failures.facts.Facts` has it.

    ``place`` is that of the replica (see :mod:`dray.places`), None where its node is not known.
    """
    which = [budget for budget in ALLOWANCES if place or budget not in _OF_PLACE]
    asked = [
        Spending(budget=budget, scope=_scope(budget, place), within=ALLOWANCES[budget].within)
        for budget in which
    ]
    return dict(zip(which, store.spent(job_id, asked, besides=event), strict=True))


def charges(decision: Decision, place: str | None, *, event: str) -> list[Charge]:
    """What a decision charges. ``event`` names the loss: all who notice it name it alike."""
    return [
        Charge(budget=budget, scope=_scope(budget, place), event=event, cause=decision.cause)
        for budget in decision.effect.charges
        if place or budget not in _OF_PLACE
    ]


def excluded(store: Store, job_id: str) -> set[str]:
    """Nodes and places that are to have no more replicas while another can: their budgets are spent."""
    found: set[str] = set()
    for budget in _OF_PLACE:
        allowed = ALLOWANCES[budget]
        found.update(store.overspent(job_id, budget, above=allowed.limit, within=allowed.within))
    return found


def shrinks(store: Store, job_id: str, *, event: str = "") -> int:
    """How many engines of the job lacked memory before this event, since its budgets were new."""
    return store.losses(job_id, Cause.OOM, besides=event)


def _scope(budget: Budget, place: str | None) -> str:
    if place is None or budget not in _OF_PLACE:
        return ""
    return place if budget is Budget.REPLICA else split_place(place)[0]
