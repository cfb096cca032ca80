"""What the store hands out and takes in: frozen records, no SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from dray.places import joined
from dray.store.states import JobState, ReplicaState, ShardState

REJECTED = -1
"""The ``shard`` of an outcome that was decided at ingest: its row entered no shard."""


_TOLD = {
    "input": "input",
    "model": "model or engine (--model, --engine, --engine-arg, --overflow)",
    "sampling": "request fields (--max-tokens, --temperature, --top-p, --seed, --param, --model-name)",
    "template": "way from rows to requests (--template, --reorder-fields, --system-prompt, --kind, "
    "--delimiter, --quoting, or an option that ends in -column, -columns or -root)",
    "format": "format, which is that of another version of dray",
}
"""The parts of a fingerprint, and the options that they come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a job is made of, as short digests or names. Equal fingerprints mean the same job."""

    input: str
    model: str
    sampling: str
    template: str
    format: str

    def differences(self, other: Fingerprint) -> list[str]:
        """The names of the parts in which ``other`` differs, in declaration order."""
        names = (part.name for part in fields(self))
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    def told_differences(self, other: Fingerprint) -> str:
        """The same for people, as in ``its ... changed``; empty where there is none."""
        return " and its ".join(_TOLD[name] for name in self.differences(other))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job. Times are seconds since 1970 by the database's clock."""

    job_id: str
    state: JobState
    epoch: int
    fingerprint: Fingerprint
    settings: Mapping[str, Any]
    total: int | None
    """Rows of the input, rejected ones included; None until ingest has finished."""
    created_at: float
    updated_at: float
    driver: str | None
    """The owner of the driver's lease, live or not; None when it was given back."""
    driver_until: float | None
    cancel_requested: bool
    reason: str | None
    summary: Mapping[str, Any]
    info: Mapping[str, Any]
    expires_at: float | None
    """When what is unfinished becomes error rows; None for never."""
    cancelled_at: float | None
    """When it was cancelled for good: it goes on by an explicit word only. None where it was not."""
    key: int = field(repr=False)
    """The store's own number for the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """A byte range of a spool file.

    ``length`` and ``offset`` are bytes. Its rows stand at the positions [``first_position``,
    ``last_position``) of the spool; their indexes are on their lines. A ``number`` below 0 asks
    :meth:`Store.split_shard` for the next free one. ``inherited`` is how many of the rows had an
    outcome before the shard existed (parts of a split shard). A part that is a ``suspect``
    inherits the suspicion of the whole. ``family`` names a prefix that all of its rows share with those of
    other shards; 0 for none.
    """

    number: int
    uri: str
    offset: int
    length: int
    rows: int
    first_position: int
    inherited: int = 0
    suspect: bool = True
    family: int = 0

    @property
    def last_position(self) -> int:
        """The position after that of its last row."""
        return self.first_position + self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One shard as the store knows it: the spec, and where it stands."""

    number: int
    uri: str
    offset: int
    length: int
    rows: int
    first_position: int
    inherited: int
    state: ShardState
    epoch: int
    owner: str | None
    lease_until: float | None
    parent: int | None
    """The shard that was split into this one and its siblings."""
    interruptions: int
    """Interruptions in a row (spot, lost node, lapsed lease) without one new finished row."""
    crashes: int
    """Engines that died under it and count against it; the suspects of a split shard begin with 1."""
    replica: str | None
    """Where it runs, while it is leased."""
    done: int
    failed: int
    crashed_at: str | None = None
    """The place of the last of its ``crashes``, or of the whole's; see :mod:`dray.places`."""
    family: int = 0
    """Names a prefix that all of its rows share with those of other shards; 0 for none."""

    @property
    def last_position(self) -> int:
        """The position after that of its last row."""
        return self.first_position + self.rows

    @property
    def terminal(self) -> int:
        """Rows that have an outcome."""
        return self.inherited + self.done + self.failed

    @property
    def remaining(self) -> int:
        """Rows that are not terminal yet."""
        return self.rows - self.terminal

    def is_leased(self, now: float) -> bool:
        """Whether a task has it, and its lease has not lapsed; ``now`` is the store's time."""
        return self.state is ShardState.LEASED and (self.lease_until or 0.0) > now


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSignals:
    """Whether a job is to stop: a user or its driver said so, its time is over, or its driver paused it."""

    cancelled: bool
    expired: bool
    at_rest: bool = False

    @property
    def stop(self) -> bool:
        """Whether its driver and its shard tasks are to stop work on it."""
        return self.cancelled or self.expired or self.at_rest


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLease:
    """The right to drive a job, until another driver claims it (a higher ``epoch``)."""

    job_id: str
    key: int
    epoch: int
    owner: str
    ttl: float
    """Seconds from the last renewal, which holders measure by their own monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLease:
    """The right to publish outcomes of one shard, until the shard's ``epoch`` moves on."""

    job_id: str
    key: int
    number: int
    epoch: int
    owner: str
    ttl: float
    """Seconds from the last renewal or commit, which holders measure by their own monotonic clock."""
    replica: str | None = None
    """Where it is to run, as claimed."""
    suspect: bool = False
    """Whether engines died under it: it has this replica to itself."""
    terminal: int = 0
    """Rows of the shard that had an outcome when it was claimed: exact, as no other holder adds to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """A replica of the job, as its driver last knew it.

    ``slots`` is how many shards it takes at a time; ``node`` is the cluster's id of its node and ``host`` the
    name people know it by, None until it is ready; ``others`` are the ids of its other nodes, where it is on
    several. ``reserved`` is the suspect that is to have it alone.
    ``note`` says why it does not work, where it does not. ``family`` is that of the last of its shards that
    had one: its cache holds that prefix.
    """

    name: str
    lane: int
    state: ReplicaState
    slots: int
    node: str | None = None
    host: str | None = None
    max_num_seqs: int = 0
    reserved: int | None = None
    note: str | None = None
    family: int = 0
    others: tuple[str, ...] = ()

    @property
    def nodes(self) -> str | None:
        """All of its nodes, as :mod:`dray.places` has them; None where its process's is not known."""
        return None if self.node is None else joined([self.node, *self.others])


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What came of asking for a shard: its lease; or none, because all replicas are taken (``waiting``)."""

    lease: ShardLease | None
    waiting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A loss, charged to a ``budget`` of a ``scope``: a node, a place, or the job where it is empty.

    ``event`` names the loss, such as the replica that died: however many notice it, it is charged once.
    """

    budget: str
    event: str
    cause: str
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What is asked of a budget: the charges to a ``scope`` of it.

    ``within`` counts only those of the last part of the work, as a share of the job's rows: 0 since the last
    row was answered (at the node or place that is the scope, or at all), None all.
    """

    budget: str
    scope: str = ""
    within: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSnapshot:
    """What the store knows of a shard at the end of an attempt, read at one moment.

    ``now`` is the database's time; ``new_rows`` got their outcome in this attempt. ``elsewhere`` is true if
    its last crash was at another place than this attempt, or the job has no other place.
    """

    now: float
    shard: Shard
    new_rows: int
    elsewhere: bool
    notices: tuple[StoredNotice, ...]
    signals: StopSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReceipt:
    """What a commit did: rows that were new, and what is to become of the job."""

    inserted: int
    signals: StopSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Rows of a job. ``total = done + failed + pending``; rejected rows are among ``failed``."""

    total: int
    done: int
    failed: int

    @property
    def pending(self) -> int:
        """Rows without an outcome."""
        return self.total - self.done - self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Counts and tokens of a job so far."""

    counts: Counts
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class StoredOutcome(NamedTuple):
    """An outcome as read back: the fields of ``Outcome``, and where it came from.

    ``committed_at`` is seconds since 1970 by the database's clock.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which no reader of outcomes needs
    custom_id: str | None
    response: bytes | None
    error_code: str | None
    error_message: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float
    shard: int
    epoch: int
    committed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What one look at followers did: rows looked at that now have their outcome, and where to go on.

    ``after`` is the index of the last row that was looked at; None after the last row of the job.
    """

    rows: int
    after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a shard, from claim to end. ``cause`` is None while it runs."""

    shard: int
    epoch: int
    owner: str
    node: str | None
    replica: str | None
    started_at: float
    ended_at: float | None
    cause: str | None
    detail: str
    done: int
    failed: int
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNotice:
    """A spot interruption notice. Times are seconds since 1970."""

    node: str
    source: str
    action: str
    deadline: float | None
    seen_at: float
    kind: str = "interruption"
    event: str = ""
    """The source's name for it; the same notice is kept once."""
