"""How attempts at shards end, where no error decides: those have a :class:`dray.failures.facts.Cause`."""

from __future__ import annotations

from enum import StrEnum

from dray.failures.facts import Cause


class AttemptCause(StrEnum):
    """The ends of attempts that are no error's."""

    DONE = "DONE"
    """The shard is finished."""
    NOT_THERE = "NOT_THERE"
    """The replica was gone before a row came to it: charged to no budget."""
    CLAIMED_AGAIN = "CLAIMED_AGAIN"
    """The shard task made the same claim again, for the answer to the first one was lost."""
    LEASE_EXPIRED = "LEASE_EXPIRED"
    """Another shard task took the shard once its lease had lapsed."""
    DRIVER_LOST = "DRIVER_LOST"
    """Another driver took the job, and freed its shards."""
    SPOOL_AWAY = "SPOOL_AWAY"
    """The requests could not be read from the spool: counted, and charged to no budget."""


INTERRUPTIONS = frozenset({Cause.SPOT, Cause.NODE_LOSS, AttemptCause.LEASE_EXPIRED, AttemptCause.DRIVER_LOST})
"""Ends that take a shard from its holder through no fault of the shard's rows."""
