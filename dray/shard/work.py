"""What an attempt at a shard is given, and how it can end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dray.engine.client import ReplicaClient
from dray.engine.replica import FLUSH_SECONDS
from dray.failures.causes import Decision
from dray.requests.media import Roots
from dray.shard.hearing import VERDICT_SECONDS
from dray.shard.pump import ShardReceipt
from dray.storage.objects import ObjectStoreOptions
from dray.store import JobLease, Shard, Store
from dray.store.shard_calls import SHARD_TTL


class Replicas(Protocol):
    """How replicas are reached."""

    def find(self, name: str) -> ReplicaClient:
        """The replica of this name; ReplicaLostError where there is none."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A shard to be run, and what all attempts at it share.

    ``verdict_seconds``: for so long, an attempt waits for the driver's judgement of a lost replica.
    ``commit_seconds``: for so long at most, a finished row waits for its commit. ``roots``: below
    these lie files that rows name; none where they name none.
    """

    store: Store
    job: JobLease
    shard: Shard
    replicas: Replicas
    owner: str
    options: ObjectStoreOptions | None = None
    roots: Roots = field(default_factory=dict)
    ttl: float = SHARD_TTL
    verdict_seconds: float = VERDICT_SECONDS
    commit_seconds: float = FLUSH_SECONDS


class AttemptEnd(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    HELD = "held"  # by another attempt, or it was done before
    STOPPED = "stopped"  # the job is cancelled, or its time is over
    INTERRUPTED = "interrupted"  # see the decision


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """The end of an attempt. ``note`` is for people: the node, and what was kept.

    ``unread``: its requests, or their files, could not be read. ``moved``: it had rows committed before.
    """

    how: AttemptEnd
    receipt: ShardReceipt | None = None
    decision: Decision | None = None
    note: str = ""
    unread: bool = False
    moved: bool = False
