"""The driver looks after the weights on the nodes for as long as the job runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dray.cluster import ClusterSettings
from dray.driver import weights_watch
from dray.driver.events import Event, Told, Warned
from dray.driver.weights_watch import prefetched_weights, weights_on
from dray.driver.whole_job import run_job
from dray.errors import WeightsError
from dray.job.beginning.opening import open_job
from dray.job.open_job import reopen
from dray.job.options.settings import JobSettings
from dray.weights import Manifest
from dray.weights.node.local import ModelProgress
from tests.support.lanes import parts_on
from tests.support.thread_fleet import ThreadFleet
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
        ready = min(5 * (self.looks - 1), 10)
        return ModelProgress(node=node, ready=ready, size=10, root="/", memory=True, began=0.0, moved=0.0)


def test_an_error_that_is_not_drays_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_watch, "LOOK_EVERY", 0.01)
    told: list[Event] = []
    moves: list[bool] = []
    job: Any = SimpleNamespace(weights=object())
    model: Any = _Model()
    with weights_on(job, model, told.append, lambda: moves.append(True)):
        until(lambda: any(isinstance(one, Told) for one in told))
        looks = model.looks
        until(lambda: model.looks > looks)
    assert len(moves) == 2  # nothing came after that
    assert [one.line for one in told if isinstance(one, Warned)] == [
        "looking at the nodes' weights: KeyError"
    ]


class _Lasting:
    """A model whose progress can never be read."""

    def __init__(self) -> None:
        self.looks = 0

    def describe(self, node: str) -> ModelProgress:
        self.looks += 1
        raise WeightsError("no progress here")


def test_an_error_that_lasts_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_watch, "LOOK_EVERY", 0.01)
    told: list[Event] = []
    job: Any = SimpleNamespace(weights=object())
    model: Any = _Lasting()
    with weights_on(job, model, told.append, lambda: None):
        until(lambda: model.looks > 5)
    assert [one.text for one in told] == ["looking at the nodes' weights: no progress here"]


def test_jobs_of_one_name_in_two_stores_hold_the_model_each_for_itself(
    make_settings: Callable[..., JobSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of one let go of the other's model: a third job could take its room."""
    holders: list[str] = []

    def agents(manifest: Manifest, access: object, holder: str) -> object:
        holders.append(holder)
        return SimpleNamespace(look=list, count=0, drop=lambda remove: None)

    monkeypatch.setattr(weights_watch, "NodeAgents", agents)
    for name in ("a", "b"):
        folder = tmp_path / name
        settings = make_settings(job_id="job", output=str(folder), store_url=f"sqlite:///{folder}/dray.db")
        job = open_job(settings)
        with weights_on(replace(job, weights=cast("Manifest", object())), None, print, print):
            pass
    assert len(set(holders)) == 2


def test_a_job_without_a_row_left_fetches_no_model(
    make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for it is made at the cost of other models, or there is none any more."""

    def fetch(*_: object) -> None:
        raise WeightsError("no room")

    monkeypatch.setattr(weights_watch, "LocalModel", fetch)
    settings = make_settings(job_id="job", replicas=1)
    job = replace(open_job(settings), weights=cast("Manifest", object()))
    with pytest.raises(WeightsError), prefetched_weights(job, ClusterSettings()):
        pass
    with reopen(job) as store:
        store.release_job(job.lease)
    run_job(settings, parts_on(ThreadFleet(["node"])))
    again = replace(open_job(settings), weights=job.weights)
    with prefetched_weights(again, ClusterSettings()) as model:
        assert model is None
