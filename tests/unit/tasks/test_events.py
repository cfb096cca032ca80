"""Events of dray's own: the shares of error rows that send one, and what an event may carry."""

from __future__ import annotations

import pytest

from tasks import events
from tasks.events import ERROR_ROWS, ERROR_SHARES, ErrorShare, tell_of_job

pytestmark = pytest.mark.unit


def test_a_few_rows_say_nothing() -> None:
    assert ErrorShare().reached(finished=ERROR_ROWS - 1, failed=ERROR_ROWS - 1) is None


def test_each_share_is_told_once_and_the_highest_of_several() -> None:
    share = ErrorShare()
    told = [share.reached(finished=100, failed=failed) for failed in (0, 1, 1, 2, 12, 12, 90, 100)]
    assert told == [None, 0.01, None, None, 0.1, None, 0.5, None]
    assert set(told) - {None} <= set(ERROR_SHARES)


def test_a_share_that_falls_and_rises_is_told_once() -> None:
    share = ErrorShare()
    assert share.reached(finished=20, failed=1) == 0.05
    assert share.reached(finished=1000, failed=1) is None
    assert share.reached(finished=1000, failed=60) is None


def test_outside_a_flow_run_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "emit_event", lambda **_: pytest.fail("it would start a server"))
    tell_of_job("job", "started", {})
