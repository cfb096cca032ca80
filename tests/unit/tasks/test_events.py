"""Events of dray's own: none is sent where there is no flow run."""

from __future__ import annotations

import pytest

from tasks import events
from tasks.events import tell_of_job

pytestmark = pytest.mark.unit


def test_outside_a_flow_run_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "emit_event", lambda **_: pytest.fail("it would start a server"))
    tell_of_job("job", "started", {})
