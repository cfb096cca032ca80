"""The waits between the attempts at one shard, and for how long the store or the spool has been away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dray.failures.causes import Decision
from dray.failures.facts import Cause
from dray.shard.commit_outage import CommitOutage

NO_WAIT_VARIABLE = "DRAY_NO_WAIT"
"""Set: tries follow each other at once, for tests."""


@dataclass(kw_only=True)
class Backoff:
    """What the attempts at one shard, in one process, hand on to each other."""

    cause: Cause | None = None
    tries: int = 0
    """In a row that failed of ``cause``."""
    delay: float = 0.0
    away_since: float | None = None
    """When the store was first found away (monotonic); None since it last took a write."""
    unread_since: float | None = None
    """When the shard's requests were first found unreadable (monotonic); None since they last were read."""
    outage: CommitOutage = field(default_factory=CommitOutage)
    """For how long the store answered, and took no row of the shard."""

    def note(self, decision: Decision, *, unread: bool = False, moved: bool = False) -> None:
        """An attempt ended so; ``unread`` where requests could not be read, ``moved`` where some had been.

        Their time counts apart from the database's, which may be fine.
        """
        if not unread or moved:
            self.unread_since = None
        if unread and self.unread_since is None:
            self.unread_since = time.monotonic()
        self.tries = self.tries + 1 if decision.cause is self.cause else 1
        self.cause = decision.cause
        self.delay = decision.delay
        if decision.cause is not Cause.STORE_TRANSIENT:
            self.answered()
            self.outage.end()
        elif self.away_since is None:
            self.away_since = time.monotonic()

    def answered(self) -> None:
        """The store took a write: the next time that it is away has a clock of its own.

        That it can be read says less: a lock may keep all writes out.
        """
        self.away_since = None

    def connected(self) -> None:
        """The store is up, and had no connection left: nothing counts against it from before."""
        self.answered()
        self.outage.end()

    @property
    def away_seconds(self) -> float:
        """How many seconds the store has been away."""
        return 0.0 if self.away_since is None else time.monotonic() - self.away_since

    @property
    def unread_seconds(self) -> float:
        """How many seconds the requests could not be read."""
        return 0.0 if self.unread_since is None else time.monotonic() - self.unread_since

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Wait before the next attempt, at most until ``stopped`` says that the job is to stop."""
        if os.environ.get(NO_WAIT_VARIABLE):
            return
        began = time.monotonic()
        deadline = began + self.delay
        while (left := deadline - time.monotonic()) > 0 and not stopped():
            time.sleep(min(left, 1.0))
        self.outage.waited(time.monotonic() - began)
        self.delay = 0.0
