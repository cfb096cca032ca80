"""How Prefect's retries follow the table of causes."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dray.errors import InterruptedShardError
from dray.failures.causes import Decision
from dray.failures.facts import Cause
from dray.shard.untaken import Untaken

RETRIES = 1_000_000
"""No limit of Prefect's: the budgets in the store say when a job has failed."""

NO_WAIT_VARIABLE = "DRAY_NO_WAIT"
"""Set: tries follow each other at once, for tests."""

_reason = ""


def worth_retrying(task: Any, task_run: Any, state: Any) -> bool:
    """Whether an attempt ended early, by a decision that another follows.

    A plain function of this module: Prefect silently turns retries off for anything else.
    """
    global _reason
    try:
        state.result(raise_on_failure=True)
    except InterruptedShardError as error:
        _reason = str(error)
        return True
    except BaseException:  # noqa: BLE001  the verdict on every other error is the same: no
        return False
    return False


def say_why() -> None:
    """Have the state of a retry say why there is one: Prefect leaves its message empty.

    Its engine takes the state from a name of its own module, which a test holds to.
    """
    import prefect.task_engine

    engine: Any = prefect.task_engine
    plain = engine.Retrying
    if getattr(plain, "says_why", False):
        return

    def retrying(*arguments: Any, **settings: Any) -> Any:
        return plain(*arguments, **{"message": _reason or None, **settings})

    retrying.says_why = True  # type: ignore[attr-defined]
    engine.Retrying = retrying


@dataclass(kw_only=True)
class Backoff:
    """The waits between the attempts at one shard, in one process: Prefect ignores its own jitter."""

    cause: Cause | None = None
    tries: int = 0
    """In a row that failed of ``cause``."""
    delay: float = 0.0
    away_since: float | None = None
    """When the store was first found away (monotonic); None since it last took a write."""
    unread_since: float | None = None
    """When the shard's requests were first found unreadable (monotonic); None since they last were read."""
    untaken: Untaken = field(default_factory=Untaken)
    """For how long the store answered, and took no row of the shard."""
    rng: random.Random = field(default_factory=random.Random)

    def note(self, decision: Decision, *, unread: bool = False) -> None:
        """An attempt ended so; ``unread`` where its requests could not be read.

        That has a clock of its own: the database answers meanwhile.
        """
        if not unread:
            self.unread_since = None
        elif self.unread_since is None:
            self.unread_since = time.monotonic()
        self.tries = self.tries + 1 if decision.cause is self.cause else 1
        self.cause = decision.cause
        self.delay = decision.delay
        if decision.cause is not Cause.STORE_TRANSIENT:
            self.answered()
            self.untaken.taken()
        elif self.away_since is None:
            self.away_since = time.monotonic()

    def answered(self) -> None:
        """The store took a write: the next time that it is away has a clock of its own.

        That it can be read says less: a lock may keep all writes out.
        """
        self.away_since = None

    @property
    def away_seconds(self) -> float:
        """For how long the store has been away."""
        return 0.0 if self.away_since is None else time.monotonic() - self.away_since

    @property
    def unread_seconds(self) -> float:
        """For how long the requests could not be read."""
        return 0.0 if self.unread_since is None else time.monotonic() - self.unread_since

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Wait before the next attempt, at most until ``stopped`` says that the job is to stop."""
        if os.environ.get(NO_WAIT_VARIABLE):
            return
        began = time.monotonic()
        deadline = began + self.delay
        while (left := deadline - time.monotonic()) > 0 and not stopped():
            time.sleep(min(left, 1.0))
        self.untaken.waited(time.monotonic() - began)
        self.delay = 0.0
