"""The driver looks after the weights on the nodes for as long as the job runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dray.driver import weights_watch
from dray.driver.events import Event, Told, Warned
from dray.driver.weights_watch import weights_on
from dray.weights.node.local import ModelProgress
from tests.support.waiting import until

pytestmark = pytest.mark.unit


class _Model:
    """A model on this machine whose progress cannot be read at first."""

    def __init__(self) -> None:
        self.looks = 0

    def describe(self, node: str) -> ModelProgress:
        self.looks += 1
        if self.looks == 1:
            raise KeyError("confidential")
        return ModelProgress(node=node, ready=10, size=10, root="/", memory=True, began=0.0, moved=0.0)


def test_an_error_that_is_not_drays_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_watch, "LOOK_EVERY", 0.01)
    told: list[Event] = []
    job: Any = SimpleNamespace(weights=object())
    model: Any = _Model()
    with weights_on(job, model, told.append):
        until(lambda: any(isinstance(one, Told) for one in told))
    assert [one.line for one in told if isinstance(one, Warned)] == [
        "looking at the nodes' weights: KeyError"
    ]
