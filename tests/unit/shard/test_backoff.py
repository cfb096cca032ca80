"""The waits between the attempts at one shard, and the clock of a store that is away."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from dray.engine.client import ReplicaClient
from dray.errors import InterruptedShardError, JobPausedError, ReplicaLostError, StoreTransientError
from dray.failures.causes import Decision, decide
from dray.failures.facts import Cause, Facts
from dray.shard.backoff import NO_WAIT_VARIABLE, Backoff
from dray.shard.task import Ended, try_once
from dray.shard.work import ShardWork
from dray.store import open_store
from tests.support.stores import claimed, ready_job

pytestmark = pytest.mark.unit


def _decision(error: Exception) -> Decision:
    return decide(error, Facts(node_alive=False, tries=3))


def test_the_clock_of_a_store_that_is_away_ends_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away for a moment, there for an hour, and away again: that is not an hour away."""
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        lease = ready_job(store)
        work = ShardWork(job=lease, shard=store.shards("job")[0], store_url=url)
        claimed(store, lease)  # by another attempt
    gone = replace(work, store_url=str(tmp_path / "gone.db"))
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    backoff = Backoff()
    backoff.note(_decision(StoreTransientError("x")))
    assert backoff.away_since is not None
    backoff.away_since -= 3600
    assert _try(work, backoff) is Ended.HELD
    with pytest.raises(InterruptedShardError):  # and not JobPausedError
        _try(gone, backoff)
    backoff.away_since -= 3600
    with pytest.raises(JobPausedError):
        _try(gone, backoff)


def _try(work: ShardWork, backoff: Backoff) -> Ended:
    return try_once(work, NoReplicas(), backoff, lambda line: None).how


class NoReplicas:
    """No attempt here comes to a replica."""

    def find(self, name: str) -> ReplicaClient:
        raise ReplicaLostError(name)


def test_only_tries_in_vain_and_the_waits_between_them_count_against_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shard may wait for hours for a replica between two commits that the store did not take."""
    monkeypatch.delenv(NO_WAIT_VARIABLE, raising=False)
    backoff = Backoff()
    outage = backoff.outage
    backoff.delay = 0.05
    backoff.wait(lambda: False)
    with outage.trying():
        time.sleep(0.05)
    assert outage.seconds == 0.0
    with pytest.raises(StoreTransientError), outage.trying():
        time.sleep(0.05)
        raise StoreTransientError("x")
    tried = outage.seconds
    assert tried >= 0.05
    time.sleep(0.05)
    assert outage.seconds == tried
    backoff.delay = 0.05
    backoff.wait(lambda: False)
    assert outage.seconds >= tried + 0.05
    backoff.note(_decision(StoreTransientError("x")))
    assert outage.seconds > 0.0
    backoff.note(_decision(ReplicaLostError("x")))
    assert outage.seconds == 0.0


def test_waits_are_kept_between_attempts_and_end_early_when_nobody_wants_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(NO_WAIT_VARIABLE, raising=False)
    backoff = Backoff()
    for tries in (1, 2):
        backoff.note(_decision(ReplicaLostError("x")))
        assert (backoff.cause, backoff.tries) == (Cause.NODE_LOSS, tries)
    backoff.note(_decision(StoreTransientError("x")))
    assert (backoff.cause, backoff.tries) == (Cause.STORE_TRANSIENT, 1)
    assert backoff.away_since is not None
    backoff.delay = 60.0
    began = time.monotonic()
    backoff.wait(lambda: True)
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    backoff.delay = 60.0
    backoff.wait(lambda: False)
    assert time.monotonic() - began < 5
