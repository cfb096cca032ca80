"""What a decision can ask for, what it can be charged to, and how long to wait."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dray.codes import ErrorCode


class OnShard(StrEnum):
    """What becomes of the shard. Finished rows stay in every case."""

    DROP = "drop"  # it is not ours
    RELEASE = "release"
    SUSPECT = "suspect"  # release; from now on it has an engine to itself, so that a crash tells something
    SPLIT = "split"  # two halves, which are suspects, and begin without interruptions
    HALVE = "halve"  # two halves, which are suspects only if the whole was, and begin without interruptions
    REFUSE = "refuse"  # what is left of it, one request, becomes an error row with the effect's code


SHRINK_STEPS = 2
"""How often memory that does not suffice halves what the job's new engines do at a time."""


class OnTask(StrEnum):
    """How the shard's task ends, and the job with it where that is said."""

    DONE = "done"
    RETRY = "retry"
    SUPERSEDED = "superseded"  # completed, under this name
    SPLIT = "split"  # completed, under this name: the halves are tasks of their own
    FAIL = "fail the job"
    PAUSE = "pause the job"  # with the reason; an operator resumes it
    CANCEL = "cancel"  # the job is being cancelled, or its time is over: the driver ends it


class Budget(StrEnum):
    """What a loss is charged to."""

    INFRA = "infra"
    NODE = "node"
    REPLICA = "replica"
    MODEL = "model"
    OOM = "oom"
    UNKNOWN = "unknown"


class OnSpent(StrEnum):
    """What happens when a budget is spent."""

    FAIL = "fail"  # the job
    EXCLUDE = "exclude"  # no more replicas (of this lane, or any) on that node while another can have them


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The charge after ``limit`` has the consequence.

    ``within`` is the last part of the work, as a share of the job's rows, whose charges are counted: 0 for
    those since a row was last answered, so that what is found by trying does not add up; None for all.
    ``advice`` is what to do when it is spent.
    """

    limit: int
    scope: str
    then: OnSpent
    within: float | None = None
    advice: str = ""


ALLOWANCES: Mapping[Budget, Allowance] = {
    # A job of days on many nodes may lose more than these, as long as it gets on between the losses. A row
    # that takes its node along is found within them: 5, then log2 of the rows in an engine, and 2.
    Budget.INFRA: Allowance(
        limit=20,
        scope="the job, since a row was last answered",
        within=0.0,
        then=OnSpent.FAIL,
        advice="look at the nodes, then resume the job",
    ),
    Budget.NODE: Allowance(limit=2, scope="the node, in the job", then=OnSpent.EXCLUDE),
    # More than it takes to find one bad row of a million, log2(n) + 3, or a broken model could not be
    # distinguished from bad rows.
    Budget.MODEL: Allowance(
        limit=25,
        scope="the job, since a row was last answered",
        within=0.0,
        then=OnSpent.FAIL,
        advice="try the model and its engine arguments with one row, then resume the job",
    ),
    Budget.REPLICA: Allowance(
        limit=5,
        scope="the replica and its successors on a node, since one last answered a row",
        within=0.0,
        then=OnSpent.EXCLUDE,
    ),
    Budget.OOM: Allowance(
        limit=SHRINK_STEPS,
        scope="the job, since a row was last answered",
        within=0.0,
        then=OnSpent.FAIL,
        advice="resume the job with more memory, or with a smaller max_num_seqs or max_num_batched_tokens "
        "(`dray run --resume`); a smaller max_model_len makes a new job, with an --output of its own",
    ),
    Budget.UNKNOWN: Allowance(
        limit=2, scope="the job, since a row was last answered", within=0.0, then=OnSpent.FAIL
    ),
}


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds before the next try: full jitter up to ``base``, doubled with each try in a row, up to ``cap``.

    https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter/
    """

    base: float = 0.0
    cap: float = 0.0

    def seconds(self, tries: int, rng: random.Random) -> float:
        """A draw, after ``tries`` in a row that failed the same way before this one."""
        return rng.uniform(0.0, min(self.cap, self.base * 2.0 ** min(max(tries, 0), 30)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What follows, and what it is charged to. ``code`` is that of the error row of a request refused."""

    shard: OnShard = OnShard.RELEASE
    code: ErrorCode | None = None
    task: OnTask = OnTask.RETRY
    charges: tuple[Budget, ...] = ()
    wait: Wait = Wait()
