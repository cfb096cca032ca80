"""Whether a process is one flow run's own, and what a run takes from its caller's context."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect import tags
from prefect.context import FlowRunContext, TagsContext

from tasks.prefect_run import has_process_to_itself, in_own_run

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("own", "above"),
    [
        (True, None),  # of a deployment
        (True, uuid4()),  # started by ``run_deployment`` in another process
        (False, uuid4()),  # called by a flow whose process this is
        (False, None),  # of a script that such a flow has started
    ],
)
def test_a_process_is_that_of_the_run_for_which_prefect_started_it(
    monkeypatch: pytest.MonkeyPatch, own: bool, above: object
) -> None:
    run = SimpleNamespace(id=uuid4(), parent_task_run_id=above)
    monkeypatch.setattr(FlowRunContext, "get", lambda: SimpleNamespace(flow_run=run))
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run.id if own else uuid4()))
    monkeypatch.setenv("PREFECT__ENABLE_CANCELLATION_AND_CRASHED_HOOKS", "false")
    assert has_process_to_itself() is own
    monkeypatch.delenv("PREFECT__FLOW_RUN_ID")
    assert not has_process_to_itself()


def test_tags_of_the_caller_do_not_reach_tasks() -> None:
    """Before a task with tags, Prefect asks its server for slots, and fails the task where that is away."""
    with tags("nightly"):
        with in_own_run():
            assert not TagsContext.get().current_tags
        assert TagsContext.get().current_tags == {"nightly"}
