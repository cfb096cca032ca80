"""Where jobs, shards and replicas stand, as the store has it."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job stands. The names are those of the OpenAI batch API, plus ``paused``."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    PAUSED = "paused"

    @property
    def at_rest(self) -> bool:
        """Whether no driver is expected to work on the job until a user resumes it."""
        return self in _AT_REST

    @property
    def answered(self) -> bool:
        """Whether it was completed, or its time is over: no cancel changes that."""
        return self in _ANSWERED


_AT_REST = frozenset(
    {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED, JobState.PAUSED}
)
_ANSWERED = frozenset({JobState.COMPLETED, JobState.EXPIRED})


class ShardState(StrEnum):
    """Where a shard stands: ``pending -> leased -> done``, ``leased -> pending``, ``leased -> split``."""

    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    SPLIT = "split"


OPEN_STATES = (ShardState.PENDING.value, ShardState.LEASED.value)
"""States of shards that still have rows to run."""


class ReplicaState(StrEnum):
    """Where a replica stands: ``starting -> ready -> leaving -> gone``, or straight to ``gone``.

    A ``retired`` one is gone, or about to be, and nothing comes in its place: the job needs fewer replicas.
    """

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    GONE = "gone"
    RETIRED = "retired"

    @property
    def over(self) -> bool:
        """Whether no more is to come of the replica: it is gone, or retired."""
        return self in _OVER


_OVER = frozenset({ReplicaState.GONE, ReplicaState.RETIRED})
