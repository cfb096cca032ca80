"""What Prefect is told of a driver's events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dray.driver.events import CapacityDecided, CapacityMissing, MarketDecided
from tasks import observing
from tasks.observing import PrefectObserver

pytestmark = pytest.mark.unit


def test_changes_of_capacity_are_events_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(observing, "tell_of_job", lambda *values: told.append(values))
    artifact: Any = SimpleNamespace()
    observer = PrefectObserver("job", artifact)
    observer.hear(CapacityDecided(before=1, replicas=3, reason="14 shards wait"))
    observer.hear(CapacityMissing(missing=2, replicas=1, seconds=600.0, reason="no node has a GPU"))
    observer.hear(MarketDecided(on_demand=2, reason="spot is not expected to be enough"))
    assert told == [
        ("job", "capacity", {"before": 1, "replicas": 3, "reason": "14 shards wait"}),
        ("job", "capacity", {"before": 3, "replicas": 1, "reason": "no node has a GPU"}),
        ("job", "market", {"on_demand": 2, "reason": "spot is not expected to be enough"}),
    ]
