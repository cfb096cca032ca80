"""Contract: what a job does, and what is read of it, is the same whatever other jobs are in its store.

Each job numbers its shards, attempts and events from the same numbers on, and names its replicas alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from dray.errors import FencedError
from dray.store import (
    Charge,
    Evidence,
    JobState,
    ReplicaRow,
    ReplicaState,
    ShardLease,
    ShardSpec,
    Spending,
    Store,
    StoredNotice,
    Verdict,
    open_store,
    own_event,
)
from tests.support.stores import FakeClock, failure, outcomes, ready_job

pytestmark = pytest.mark.integration

SHARDS, ROWS = 5, 4
BUDGETS = [("infra", "", 0.0), ("model", "", None), ("replica", "n0 replica-0", 0.0)]


class Life:
    """A job from its ingest to its end, a step at a time; each step gives what it found.

    It has two replicas, on two nodes whose names begin with ``nodes``.
    """

    def __init__(self, store: Store, job_id: str, nodes: str = "n") -> None:
        self.store, self.job_id = store, job_id
        self.replicas = [
            ReplicaRow(
                name=f"run/replica-{lane}",
                lane=lane,
                state=ReplicaState.READY,
                slots=2,
                node=f"{nodes}{lane}",
            )
            for lane in range(2)
        ]
        self.job = ready_job(store, job_id, shards=SHARDS, rows=ROWS)

    def seen(self) -> dict[str, Any]:
        """All that can be read of the job, but for its name."""
        store, job_id = self.store, self.job_id
        job = store.get_job(job_id)
        return {
            "state": (job.state, job.epoch, job.driver, job.driver_until, job.reason, job.info, job.total),
            "stop_signals": store.stop_signals(job_id),
            "shards": store.shards(job_id),
            "attempts": store.attempts(job_id),
            "causes": store.causes(job_id),
            "replicas": store.replicas(job_id),
            "unjudged": store.unjudged(job_id, [one.name for one in self.replicas]),
            "witnesses": [store.witnesses(job_id, one.name) for one in self.replicas],
            "charges": store.charges(job_id),
            "spent": store.spent(job_id, [Spending(budget=b, scope=s, within=w) for b, s, w in BUDGETS]),
            "losses": store.losses(job_id, "ENGINE_CRASH"),
            "overspent": store.overspent(job_id, "replica", above=0, within=0.0),
            "notices": [(one.node, one.event) for one in store.notices(job_id)],
            "progress": store.progress(job_id),
            "rows": [row for page in store.outcomes(job_id) for row in page],
            "done": store.done_indexes(job_id, range(SHARDS * ROWS)),
        }

    def placed(self, number: int) -> ShardLease:
        lease = self.store.place_shard(self.job, number, owner=f"w{number}").lease
        assert lease is not None
        [replica] = [one for one in self.replicas if one.name == lease.replica]
        self.store.note_attempt(lease, node=replica.node)
        return lease

    def steps(self) -> Iterator[object]:
        store, job = self.store, self.job
        store.put_replicas(job, self.replicas)
        first, second, third, fourth = (self.placed(number) for number in range(4))
        yield first.replica, second.replica
        yield [store.place_shard(job, 4, owner="w4", again=again) for again in (False, True)]
        yield store.commit(first, [*outcomes([0, 1]), failure(2)]).inserted
        store.commit(second, outcomes([4]))
        store.renew_shard(second)
        yield store.snapshot(first).new_rows, store.snapshot(second).new_rows
        store.testify(first, Evidence(sign="lost"))
        yield store.verdict_status(first), store.verdict_status(second)
        verdict = Verdict(cause="ENGINE_CRASH", event="replica run/replica-0")
        own = Charge(budget="infra", event=own_event(0, first.epoch), cause="NODE_LOSS")
        store.charge(first, [own])
        yield None
        lost = [
            Charge(budget=budget, scope=scope, event=verdict.event, cause=verdict.cause)
            for budget, scope, _ in BUDGETS[1:]
        ]
        store.judge(job, self.replicas[0].name, verdict, lost)
        yield store.verdict_status(first)
        store.release_shard(first, cause="ENGINE_CRASH", suspect=True, charged=[own])
        yield store.place_shard(job, 0, owner="again").waiting, store.place_shard(job, 4, owner="w4").waiting
        parts = [
            ShardSpec(
                number=-1, uri="spool.jsonl", offset=at, length=2, rows=2, first_position=at, inherited=n
            )
            for at, n in ((4, 1), (6, 0))
        ]
        yield [one.number for one in store.split_shard(second, parts, cause="ENGINE_CRASH", suspect=True)]
        store.take_back(job, third.number, cause="NODE_LOSS", detail="died")
        store.record_notice(
            self.job_id,
            StoredNotice(node="n1", source="aws", action="terminate", deadline=None, seen_at=0.0, event="1"),
        )
        store.merge_job_info(job, {"a": 1})
        yield store.pause_job(job, reason="a full disk")
        self.job = job = store.claim_job(self.job_id, "next", takeover=lambda owner: True, resume=True)
        with pytest.raises(FencedError):
            store.commit(fourth, outcomes([12]))
        yield None
        for number in (0, 2, 3, 4, 5, 6):
            lease = store.claim_shard(job, number, owner="again")
            assert lease is not None
            rows = range(4 * number, 4 * number + 4) if number < 5 else range(2 * number - 6, 2 * number - 4)
            store.commit(lease, outcomes(rows))
            yield lease.terminal
            store.finish_shard(lease)
        yield store.verify_counts(self.job_id)
        store.set_job_state(job, JobState.COMPLETED)
        store.release_job(job)
        yield None


@pytest.mark.heavy
def test_a_job_sees_and_changes_nothing_of_those_beside_it(
    store: Store, clock: FakeClock, tmp_path: Path
) -> None:
    """One life is alone in a store; two others take turns in one, beside what is left of an earlier one."""
    with open_store(str(tmp_path / "alone.db"), clock=clock) as empty:
        lone = Life(empty, "lone")
        alone = [(found, lone.seen()) for found in lone.steps()]
    earlier = Life(store, "earlier", nodes="m")
    for _ in earlier.steps():
        pass
    at_rest = earlier.seen()
    one, other = Life(store, "one"), Life(store, "other")
    for expected, found, again in zip_longest(alone, _told(one, other), _told(other, one)):
        assert found == expected
        assert again == expected
    assert earlier.seen() == at_rest


def _told(life: Life, beside: Life) -> Iterator[tuple[object, dict[str, Any]]]:
    """What the steps of a job find, none of which changes what is seen of the one beside it."""
    steps = life.steps()
    while True:
        before = beside.seen()
        try:
            found = next(steps)
        except StopIteration:
            return
        assert beside.seen() == before
        yield found, life.seen()
