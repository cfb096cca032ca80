"""What follows from a loss: the first of :data:`dray.failures.rules.RULES` that fits decides.

:func:`decide` is a pure function of an error and of what is known around it. Its caller carries the decision
out, and counts the charges in the store, where they outlive the process.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from dray.failures.effects import ALLOWANCES, Budget, Effect, OnSpent, OnTask
from dray.failures.facts import Cause, Facts
from dray.failures.rules import RULES, Rule
from dray.failures.signs import ErrorFacts, facts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do. ``reason`` is for people: it quotes nothing.

    ``delay`` is seconds before the next try, to be slept at its start: Prefect ignores its own jitter.
    """

    cause: Cause
    effect: Effect
    delay: float
    reason: str


def decide(
    error: BaseException | ErrorFacts, facts: Facts | None = None, *, rng: random.Random | None = None
) -> Decision:
    """What ``error`` was, given ``facts``, and what to do. Always decides, and changes nothing."""
    known = facts or Facts()
    said = error if isinstance(error, ErrorFacts) else facts_of(error)
    rule = next(rule for rule in RULES if rule.fits(said, known))
    spent = [budget for budget in rule.effect.charges if is_spent(budget, known.spent)]
    over = [budget for budget in spent if ALLOWANCES[budget].then is OnSpent.FAIL]
    effect = rule.effect
    if over:  # no verdict on a row: where engines always die, none is to blame
        effect = Effect(task=OnTask.FAIL, charges=effect.charges)
    return Decision(
        cause=rule.cause,
        effect=effect,
        delay=effect.wait.seconds(known.tries, rng or random.Random()),  # noqa: S311  spreads load
        reason=_reason(rule, said, over),
    )


def is_spent(budget: Budget, spent: Mapping[Budget, int]) -> bool:
    """Whether one more charge is one too many, after ``spent``."""
    return spent.get(budget, 0) >= ALLOWANCES[budget].limit


def _reason(rule: Rule, error: ErrorFacts, over: list[Budget]) -> str:
    told = f"{rule.cause}: {rule.when}" + (f" ({error.name})" if error.name else "")
    told += f"; {rule.advice}" if rule.advice else ""
    if not over:
        return told
    limits = ", ".join(f"{budget} {ALLOWANCES[budget].limit}" for budget in over)
    asked = [Budget.OOM] if rule.cause is Cause.OOM else over
    advice = "; ".join(ALLOWANCES[budget].advice for budget in asked if ALLOWANCES[budget].advice)
    return f"{told}; no more are allowed ({limits})" + (f": {advice}" if advice else "")
