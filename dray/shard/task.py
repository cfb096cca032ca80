"""A shard's task: attempts at one shard until it is closed. Executors run it in processes or threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from dray.cluster.base import NAMESPACE
from dray.engine.client import RayReplica, ReplicaClient
from dray.errors import (
    FencedError,
    InterruptedShardError,
    JobFailedError,
    JobPausedError,
    NoConnectionError,
    ReplicaLostError,
    StoreError,
    raised_noted,
)
from dray.failures.causes import Decision, decide
from dray.failures.effects import OnTask
from dray.failures.facts import Facts
from dray.owner import owner_name
from dray.places import lane_of
from dray.shard.attempt import attempt
from dray.shard.backoff import Backoff
from dray.shard.commit_outage import advised
from dray.shard.work import AttemptEnd, AttemptResult, OpenWork, Replicas, ShardReceipt, ShardWork
from dray.store import Store, open_store

_TOLD = 5  # interruptions, the last ones: a shard whose nodes go again and again has many


class Ended(StrEnum):
    """How a shard's task ends."""

    DONE = "done"
    HELD = "held"  # by another attempt, or it was done before
    STOPPED = "stopped"  # the job is cancelled, or its time is over
    SPLIT = "split"  # the parts are shards of their own
    SUPERSEDED = "superseded"  # the shard, or the job, belongs to another holder
    NO_CONNECTION = "no connection"  # was left in the store: the driver starts the task again, later


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The end of a shard's task. ``message`` is for people, and quotes nothing.

    ``interrupted`` says why attempts before the last one ended early, where the executor does not show that.
    """

    how: Ended
    message: str
    receipt: ShardReceipt | None = None
    interrupted: tuple[str, ...] = ()


def run_task(work: ShardWork, replicas: Replicas, say: Callable[[str], None]) -> TaskResult:
    """Attempts at the shard, with the waits that the table of causes asks for, until it is closed.

    ``say`` hears at once why an attempt ended early; the result tells it as well.

    Raises:
        JobFailedError, JobPausedError: the job cannot go on.
    """
    backoff, interrupted = Backoff(), []
    while True:
        try:
            ended = try_once(work, replicas, backoff, say)
        except InterruptedShardError as error:
            interrupted.append(f"shard {work.shard.number}: {error}")
            say(interrupted[-1])
        else:
            return replace(ended, interrupted=tuple(interrupted[-_TOLD:]))


@raised_noted()
def try_once(work: ShardWork, replicas: Replicas, backoff: Backoff, say: Callable[[str], None]) -> TaskResult:
    """Lease the shard and a place on a replica, feed it, commit what streams back, and end it.

    Raises:
        InterruptedShardError: another attempt is to follow, with the same ``backoff``.
        JobFailedError, JobPausedError: the job cannot go on.
    """
    number = work.shard.number
    try:
        # One connection: the lease's thread takes a second one for the moment in which a commit is under way.
        with open_store(work.store_url, create=False, connections=1) as store:
            backoff.wait(lambda: store.stop_signals(work.job.job_id).stop)
            ended = _attempt(store, work, replicas, backoff, say)
    except FencedError:
        return TaskResult(how=Ended.SUPERSEDED, message=f"shard {number} belongs to another attempt now")
    except NoConnectionError as error:  # only the driver knows how many tasks have one
        backoff.connected()
        return TaskResult(how=Ended.NO_CONNECTION, message=str(error))
    except StoreError as error:  # before there was a lease to decide about
        ended = _without_store(error, backoff)
    return _result(number, ended, backoff)


def _attempt(
    store: Store, work: ShardWork, replicas: Replicas, backoff: Backoff, say: Callable[[str], None]
) -> AttemptResult:
    return attempt(
        OpenWork.of(work, store=store, replicas=replicas, owner=owner_name()),
        tries=backoff.tries,
        unread_seconds=backoff.unread_seconds,
        outage=backoff.outage,
        on_answer=backoff.answered,
        on_start=lambda replica: say(f"shard {work.shard.number}: on {lane_of(replica)}"),
    )


def _without_store(error: StoreError, backoff: Backoff) -> AttemptResult:
    facts = Facts(store_seconds=backoff.away_seconds, tries=backoff.tries)
    decision = advised(decide(error, facts))
    return AttemptResult(how=AttemptEnd.INTERRUPTED, decision=decision, note=str(error))


def _result(number: int, ended: AttemptResult, backoff: Backoff) -> TaskResult:
    """What the end of an attempt means for the task."""
    if ended.how is not AttemptEnd.INTERRUPTED:
        backoff.answered()
    if ended.how is AttemptEnd.DONE:
        assert ended.receipt is not None
        told = f"shard {number}: {ended.receipt.rows} rows in {ended.receipt.seconds:.1f} s"
        return TaskResult(how=Ended.DONE, message=told, receipt=ended.receipt)
    if ended.how is AttemptEnd.HELD:
        return TaskResult(how=Ended.HELD, message=f"shard {number} is finished, or held by another attempt")
    if ended.how is AttemptEnd.STOPPED:
        return TaskResult(how=Ended.STOPPED, message=f"shard {number}: the job has stopped")
    assert ended.decision is not None
    backoff.note(ended.decision, unread=ended.unread, moved=ended.moved)
    return _obey(ended.decision, f"{ended.decision.reason}; {ended.note}")


def _obey(decision: Decision, reason: str) -> TaskResult:
    after = decision.effect.task
    if after is OnTask.SPLIT:
        return TaskResult(how=Ended.SPLIT, message=reason)
    if after is OnTask.SUPERSEDED:
        return TaskResult(how=Ended.SUPERSEDED, message=reason)
    if after is OnTask.PAUSE:
        raise JobPausedError(f"{reason}; when that is mended, `dray resume JOB` goes on")
    if after is OnTask.FAIL:
        raise JobFailedError(reason)
    raise InterruptedShardError(reason)


class RayReplicas:
    """Replicas as Ray actors, found by name."""

    def find(self, name: str) -> ReplicaClient:
        """The replica of this name; ReplicaLostError where there is none."""
        found = RayReplica.find(name, NAMESPACE)
        if found is None:
            raise ReplicaLostError(f"replica {name} is gone")
        return found
