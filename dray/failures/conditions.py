"""What the rules of the table of causes ask of an error, and of what is known around it."""

from __future__ import annotations

from collections.abc import Callable

from dray.failures.facts import Facts, in_force
from dray.failures.foreign import Sign
from dray.failures.signs import ErrorFacts

INTERRUPTIONS = 5
"""Interruptions in a row without one new row, after which a shard is cut in two and the loss charged."""

NO_ROOM_TRIES = 10
"""Attempts at a shard in a row for which Ray had no room on a node, after which the job is paused."""

SAME_PLACE = 4
"""Crashes that refuse a suspect of one row though all were at one place: no other place took it meanwhile, or
each died before it was given the row. A suspect begins with 1."""

_LOSSES = frozenset({Sign.LOST, Sign.ENGINE_DEAD, Sign.ENGINE_START, Sign.OOM, Sign.OTHER})
_DEATHS = frozenset({Sign.LOST, Sign.ENGINE_DEAD, Sign.ENGINE_START})

Fits = Callable[[ErrorFacts, Facts], bool]
"""Whether a rule is about an error under these circumstances."""


def has_sign(*signs: Sign) -> Fits:
    """The error shows one of these signs."""
    return lambda error, facts: error.sign in signs


def is_spot(error: ErrorFacts, facts: Facts) -> bool:
    """Any sign of one is enough, for any node of a group: what else failed with it is collateral.

    That is Ray Train's rule (failure_handling/default.py): a fault of its own comes back on the next try.
    """
    if error.sign not in _LOSSES:
        return False
    told = error.preempted or facts.preempted or facts.draining
    return told or any(in_force(notice, facts.now) for notice in facts.notices)


def made_no_progress(facts: Facts) -> bool:
    """Interrupted once too often without one new row."""
    return facts.new_rows == 0 and facts.interruptions + 1 >= INTERRUPTIONS


def is_oom(error: ErrorFacts, facts: Facts) -> bool:
    """Memory did not suffice: so the engine says, or the system of its node."""
    return error.sign is Sign.OOM or (error.sign in _DEATHS and (error.oom or facts.oom))


def is_node_loss(error: ErrorFacts, facts: Facts) -> bool:
    """A process that went with its node, as far as is known; one that stood still was ended by dray."""
    if error.sign not in _DEATHS or error.stuck:
        return False
    return facts.node_alive is False or (error.sign is Sign.LOST and facts.node_alive is None)


def is_crash(error: ErrorFacts, facts: Facts) -> bool:
    """The engine or its process died, and its node lives."""
    return error.sign in _DEATHS and not is_node_loss(error, facts)


def is_of_the_engine(error: ErrorFacts, facts: Facts) -> bool:
    """Whether no row can be at fault: the engine never started, or died before it was given one."""
    return error.sign is Sign.ENGINE_START or (facts.alone and not facts.proven)


def is_of_its_place(error: ErrorFacts, facts: Facts) -> bool:
    """An engine did not start, and others of the same model do, or still may: the model is not to blame."""
    return error.sign is Sign.ENGINE_START and facts.hopeful


def is_lone(died: Fits) -> Fits:
    """An engine that could answer died under rows that it had to itself: one of them is at fault."""
    return lambda error, facts: died(error, facts) and facts.alone and facts.proven


def is_convicted(facts: Facts) -> bool:
    """Down to one row, for the second time alone, and at a second place where there is one."""
    return facts.rows <= 1 and facts.crashes >= 2 and (facts.elsewhere or facts.crashes >= SAME_PLACE)


def is_store_away(error: ErrorFacts, facts: Facts) -> bool:
    """The store did not answer, or for so long that the holder gave its lease up."""
    return error.sign is Sign.STORE_AWAY


def stays_full(error: ErrorFacts, facts: Facts) -> bool:
    """Ray had no room on a node once too often, and this time for not one row."""
    return error.sign is Sign.NO_ROOM and facts.tries + 1 >= NO_ROOM_TRIES and facts.new_rows == 0


def is_accused_by_nodes(error: ErrorFacts, facts: Facts) -> bool:
    """Node after node was lost under rows that shared their engines with others."""
    return is_node_loss(error, facts) and made_no_progress(facts) and not facts.alone
