"""Attempts that end because the requests of their shard cannot be read: the database answers all the time."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray.failures.causes import Decision
from dray.failures.effects import OnTask
from dray.failures.facts import Cause
from dray.failures.rules import STORE_PATIENCE
from dray.shard import pump
from dray.shard.open_rows import OpenLines, open_lines
from dray.shard.work import AttemptEnd, AttemptResult
from dray.store import AttemptCause
from tests.support.thread_fleet import ThreadReplica
from tests.unit.failures.scene import JOB, Scene

pytestmark = pytest.mark.unit

ROWS = 60  # more than an attempt reads before the first of them is answered
STALE = OSError(errno.ESTALE, "Stale file handle")
"""As a network's file system says: no error that dray knows."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(tmp_path, ROWS)) as opened:
        yield opened


def _unread_from(monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    """The rows of a shard from a position on cannot be read."""

    def read(*arguments: Any, **options: Any) -> Iterator[OpenLines]:
        for chunk in open_lines(*arguments, **options):
            if chunk.end > position:
                raise STALE
            yield chunk

    monkeypatch.setattr(pump, "open_lines", read)


def _decision(ended: AttemptResult) -> Decision:
    assert ended.decision is not None
    return ended.decision


def test_requests_that_a_network_does_not_give_charge_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unread_from(monkeypatch, 0)
    ended = scene.ended()
    decision = _decision(ended)
    assert (decision.cause, decision.effect.task) == (Cause.STORE_TRANSIENT, OnTask.RETRY)
    assert (ended.how, ended.unread, ended.moved) == (AttemptEnd.INTERRUPTED, True, False)
    assert f"the requests in {scene.spool} cannot be read (OSError)" in decision.reason
    assert scene.store.causes(JOB) == {AttemptCause.SPOOL_AWAY: 1}
    assert scene.store.charges(JOB) == []


def test_they_pause_the_job_after_half_an_hour(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    _unread_from(monkeypatch, 0)
    assert _decision(scene.ended(unread_seconds=STORE_PATIENCE - 60)).effect.task is OnTask.RETRY
    decision = _decision(scene.ended(unread_seconds=STORE_PATIENCE))
    assert decision.effect.task is OnTask.PAUSE
    assert "cannot be read for 30 minutes (OSError); look at its disk" in decision.reason


def test_an_attempt_that_read_and_committed_some_of_them_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half hour begins anew: a shard that gets on is not one that cannot be read."""
    _unread_from(monkeypatch, ROWS - 1)
    first, second = scene.ended(), scene.ended()
    assert [(one.unread, one.moved) for one in (first, second)] == [(True, True), (True, False)]
    assert 0 < scene.store.counts(JOB).done < ROWS


def test_a_cancelled_job_stops_though_its_requests_cannot_be_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unread_from(monkeypatch, 0)

    def cancel(_: ThreadReplica) -> None:
        scene.store.request_cancel(JOB)

    ended = scene.ended(then=cancel, unread_seconds=STORE_PATIENCE)
    assert (ended.how, ended.unread, _decision(ended).cause) == (AttemptEnd.STOPPED, False, Cause.CANCEL)
    assert scene.store.causes(JOB) == {"CANCEL": 1}
