"""A shard task lost its replica: it says what it saw, and waits for what the driver judges.

Only the driver asks the cluster what a replica died of, and charges that. The shard task decides by the
verdict what becomes of its own rows.
"""

from __future__ import annotations

import time

from dray.failures.facts import Cause
from dray.failures.signs import ErrorFacts
from dray.store import Evidence, ShardLease, Store, Verdict

VERDICT_SECONDS = 15.0
"""For the driver to judge a loss.

It asks each replica once a second, and then gives shard tasks 2 s and the cluster 4 s to say what they know.
A node that is cut off costs it another second for each replica there.
"""

_ASK_EVERY = 0.1


def evidence(told: ErrorFacts, lease: ShardLease, *, proven: bool) -> Evidence:
    """What the holder of ``lease`` saw of its replica's end."""
    return Evidence(
        sign=told.sign,
        oom=told.oom,
        preempted=told.preempted,
        stuck=told.stuck,
        alone=lease.suspect,  # the store has placed it so
        proven=proven,
    )


def verdict_on(store: Store, lease: ShardLease, seconds: float) -> Verdict | None:
    """What the driver judges within ``seconds``; None once it is known to judge nothing."""
    deadline = time.monotonic() + seconds
    while True:
        found = store.verdict_status(lease)
        if not found.open or time.monotonic() > deadline:
            return found.verdict
        time.sleep(_ASK_EVERY)


def node_alive(verdict: Verdict | None) -> bool | None:
    """Whether the replica's node lives, as the driver judged."""
    known = {Cause.NODE_LOSS: False, Cause.ENGINE_CRASH: True}
    return known.get(Cause(verdict.cause)) if verdict else None
