"""A store that answers, but refuses a shard's commits: for how long, and what to look for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dray.errors import StoreTransientError, StoreUnreachableError
from dray.failures.causes import Decision
from dray.failures.effects import OnTask
from dray.failures.facts import Cause
from dray.failures.rules import STORE_PATIENCE

ADVICE = (
    "look whether the database is up, whether it is read-only (a standby of PostgreSQL), and for what holds "
    "a lock there: on PostgreSQL a session in pg_locks (LOCK TABLE, VACUUM FULL, ALTER TABLE), on SQLite "
    "another program that writes to the file, or one that reads it by a query that stays open"
)
"""What to do about a store that is away, or takes no rows, for too long."""


@dataclass
class CommitOutage:
    """How long the store has answered, and yet refused the commits of one shard's rows.

    ``seconds`` adds up the tries that failed, and the waits between them. Time without anything to commit
    does not count: a shard may wait for hours for a replica, or for an answer. An outage goes on from attempt
    to attempt at the shard. It ends with a commit that succeeds, or an attempt that fails of another cause.
    """

    seconds: float = 0.0

    @property
    def too_long(self) -> bool:
        """Whether the job is to be paused."""
        return self.seconds >= STORE_PATIENCE

    @contextmanager
    def trying(self) -> Iterator[None]:
        """A try; its time counts where the store does not carry it out."""
        began = time.monotonic()
        try:
            yield
        except (StoreTransientError, StoreUnreachableError):
            self.seconds += time.monotonic() - began
            raise

    def waited(self, seconds: float) -> None:
        """The next try was put off for so long: that counts after a try in vain."""
        if self.seconds:
            self.seconds += seconds

    def end(self) -> None:
        """The store took rows, or something else ended the attempt: the next time has a clock of its own."""
        self.seconds = 0.0


def advised(decision: Decision) -> Decision:
    """The decision; one that pauses the job for a store that is away says what to look for."""
    if decision.cause is Cause.STORE_TRANSIENT and decision.effect.task is OnTask.PAUSE:
        return replace(decision, reason=f"{decision.reason}; {ADVICE}")
    return decision
