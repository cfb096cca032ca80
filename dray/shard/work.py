"""What an attempt at a shard is given, and how it can end."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Protocol

from dray.engine.client import ReplicaClient
from dray.engine.replica import FLUSH_SECONDS
from dray.failures.causes import Decision
from dray.requests.media.medium import Roots
from dray.shard.verdicts import VERDICT_SECONDS
from dray.storage.objects import ObjectStoreOptions
from dray.store import JobLease, Shard, Store
from dray.store.calls.shards import SHARD_TTL


class Replicas(Protocol):
    """How replicas are reached."""

    def find(self, name: str) -> ReplicaClient:
        """The replica of this name; ReplicaLostError where there is none."""


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """Settings that a shard task and all its attempts share.

    ``ttl`` is how long its lease lasts without a renewal, and ``commit_seconds`` how long a finished row
    waits at most for its commit, in seconds. ``roots``: below these lie files that rows name.
    """

    job: JobLease
    shard: Shard
    objects: ObjectStoreOptions | None = field(default=None, repr=False)
    roots: Roots = field(default_factory=dict)
    ttl: float = SHARD_TTL
    commit_seconds: float = FLUSH_SECONDS


@dataclass(frozen=True, kw_only=True)
class ShardWork(_Terms):
    """A shard to be run, as it is sent to a shard task."""

    store_url: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class OpenWork(_Terms):
    """A shard to be run, in the process of its task, with what was opened there.

    ``verdict_seconds``: for so long, an attempt waits for the driver's judgement of a lost replica.
    """

    store: Store
    replicas: Replicas
    owner: str
    verdict_seconds: float = VERDICT_SECONDS

    @classmethod
    def of(cls, work: ShardWork, *, store: Store, replicas: Replicas, owner: str) -> OpenWork:
        """The same work, once its store is open."""
        terms = {one.name: getattr(work, one.name) for one in fields(_Terms)}
        return cls(store=store, replicas=replicas, owner=owner, **terms)


@dataclass(frozen=True, kw_only=True)
class ShardReceipt:
    """What one attempt at a shard did.

    ``rows`` were committed by it, ``skipped`` found done; ``last_commit`` is in seconds since 1970.
    """

    number: int
    rows: int
    skipped: int
    seconds: float
    last_commit: float | None
    replica: str


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
