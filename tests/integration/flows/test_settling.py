"""Prefect knows how each task of a run ended, though it heard of none."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from prefect import flow, runtime, task, task_engine
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State

from dray.errors import ConfigError
from tasks import settling

pytestmark = pytest.mark.integration


@settling.noted
@task(name="works", task_run_name="works", persist_result=False)
def works(number: int) -> int:
    """Add one."""
    return number + 1


@settling.noted
@task(name="fails", task_run_name="fails", persist_result=False)
def fails() -> None:
    raise ConfigError("no such model")


@task(name="unknown", task_run_name="unknown", persist_result=False)
def unknown() -> None:
    """Its end is noted nowhere, as that of a run whose process died."""


@flow
def ends() -> UUID:
    assert works(1) == 2
    with pytest.raises(ConfigError, match="no such model"):
        fails()
    unknown()
    settling.settle_tasks()
    return UUID(runtime.flow_run.id)


def test_an_end_that_prefect_did_not_hear_of_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = task_engine.emit_task_run_state_change_event  # type: ignore[attr-defined]  # an import of it

    def lose_ends(*, validated_state: State, **given: Any) -> Any:
        return None if validated_state.is_final() else emit(validated_state=validated_state, **given)

    monkeypatch.setattr(task_engine, "emit_task_run_state_change_event", lose_ends)
    monkeypatch.setattr(settling, "_SECONDS", 1.0)
    run = ends()

    with get_client(sync_client=True) as client:
        found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run])))
    assert {one.name: one.state and one.state.name for one in found} == {
        "works": "Completed",
        "fails": "Failed",
        "unknown": "Ended",
    }
