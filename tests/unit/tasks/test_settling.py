"""How tasks ended is remembered without their results, and not for ever."""

from __future__ import annotations

from uuid import uuid4

import pytest
from prefect.states import Completed

from tasks import settling

pytestmark = pytest.mark.unit


def test_a_service_that_runs_job_after_job_remembers_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_ends", {})
    monkeypatch.setattr(settling, "_MOST", 3)
    names = [uuid4() for _ in range(5)]
    for number, name in enumerate(names):
        settling.note_end(name, Completed(message=f"{number}", data="a result" * 1000))
    assert list(settling._ends) == names[2:]
    assert [end.message for end in settling._ends.values()] == ["2", "3", "4"]
    assert "a result" not in repr(settling._ends)
