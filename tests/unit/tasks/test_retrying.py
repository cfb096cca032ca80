"""Which failures of a shard task are worth another try, and that exactly one layer tries."""

from __future__ import annotations

import inspect
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.states import Completed, Failed

from dray.cluster import ClusterInfo
from dray.errors import (
    CancelledError,
    FencedError,
    InterruptedShardError,
    JobFailedError,
    JobPausedError,
    ReplicaLostError,
    StoreTransientError,
)
from dray.failures.causes import Decision, decide
from dray.failures.facts import Cause, Facts
from dray.shard.work import AttemptEnd, AttemptResult
from dray.store import open_store
from tasks.infer import _stable
from tasks.infer_shard import ShardWork, _backoffs, infer_shard
from tasks.retrying import NO_WAIT_VARIABLE, RETRIES, Backoff, worth_retrying
from tests.support.stores import ready_job

pytestmark = pytest.mark.unit

NOT_RETRIED = (ReplicaLostError, FencedError, CancelledError, JobFailedError, JobPausedError)


def test_an_interrupted_shard_is_tried_again() -> None:
    assert worth_retrying(None, None, Failed(data=InterruptedShardError("SPOT: the node was taken back")))


@pytest.mark.parametrize("kind", [*NOT_RETRIED, ValueError])
def test_nothing_else_is(kind: type[Exception]) -> None:
    """The table of causes decides in the task; what it lets through is final."""
    assert not worth_retrying(None, None, Failed(data=kind("x")))


def test_no_failure_is_no_reason() -> None:
    assert not worth_retrying(None, None, Completed())


def test_prefect_takes_it_for_what_it_is() -> None:
    assert inspect.isfunction(infer_shard.retry_condition_fn)  # anything else turns retries off in silence
    assert infer_shard.retry_condition_fn is worth_retrying
    assert (infer_shard.retries, infer_shard.retry_delay_seconds) == (RETRIES, 0)
    assert infer_shard.persist_result is False


@pytest.mark.parametrize("resource", ["dray_stable", "node:__internal_head__"])
def test_ray_itself_tries_nothing_again(resource: str) -> None:
    info = ClusterInfo(address="a", nodes=(), seconds=0.0, stable_resource=resource)
    options = _stable(info)
    assert options["max_retries"] == 0
    assert options["resources"] == {resource: 0.001}  # a node marked with 1, as users do, holds a thousand


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
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    monkeypatch.setattr("tasks.infer_shard._attempt", lambda *_: AttemptResult(how=AttemptEnd.HELD))
    monkeypatch.setattr("tasks.infer_shard.get_run_logger", logging.getLogger)
    monkeypatch.setitem(_backoffs, ("job", 0), backoff := Backoff())
    backoff.note(_decision(StoreTransientError("x")))
    assert backoff.away_since is not None
    backoff.away_since -= 3600
    infer_shard.fn(0, work)
    with pytest.raises(InterruptedShardError):  # and not JobPausedError
        infer_shard.fn(0, replace(work, store_url=str(tmp_path / "gone.db")))
    backoff.away_since -= 3600
    with pytest.raises(JobPausedError):
        infer_shard.fn(0, replace(work, store_url=str(tmp_path / "gone.db")))


def test_only_tries_in_vain_and_the_waits_between_them_count_against_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shard may wait for hours for a replica between two commits that the store did not take."""
    monkeypatch.delenv(NO_WAIT_VARIABLE, raising=False)
    backoff = Backoff()
    untaken = backoff.untaken
    backoff.delay = 0.05
    backoff.wait(lambda: False)
    with untaken.trying():
        time.sleep(0.05)
    assert untaken.seconds == 0.0
    with pytest.raises(StoreTransientError), untaken.trying():
        time.sleep(0.05)
        raise StoreTransientError("x")
    tried = untaken.seconds
    assert tried >= 0.05
    time.sleep(0.05)
    assert untaken.seconds == tried
    backoff.delay = 0.05
    backoff.wait(lambda: False)
    assert untaken.seconds >= tried + 0.05
    backoff.note(_decision(StoreTransientError("x")))
    assert untaken.seconds > 0.0
    backoff.note(_decision(ReplicaLostError("x")))
    assert untaken.seconds == 0.0


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
    assert backoff.away_seconds >= 0
    backoff.delay = 60.0
    began = time.monotonic()
    backoff.wait(lambda: True)
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    backoff.delay = 60.0
    backoff.wait(lambda: False)
    assert time.monotonic() - began < 5
