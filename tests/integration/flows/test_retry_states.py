"""What Prefect says of a retry."""

from __future__ import annotations

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import TaskRunFilter

from dray.errors import InterruptedShardError
from tasks.flushing import flush_prefect
from tasks.retrying import say_why, worth_retrying

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

REASON = "SPOT: the node was taken back; it ran on node host-1; 3 of 9 rows are kept"


@task(retries=1, retry_condition_fn=worth_retrying, name="once-more")
def once_more(tries: list[int]) -> int:
    """Fails once."""
    tries.append(1)
    if len(tries) == 1:
        raise InterruptedShardError(REASON)
    return len(tries)


@flow
def twice() -> int:
    """One task, tried twice."""
    say_why()
    say_why()  # as every attempt does
    return once_more([])


def test_the_state_of_a_retry_says_why() -> None:
    """Prefect's engine takes the state from a name of its own module: this fails when that is renamed."""
    assert twice() == 2
    flush_prefect()
    with get_client(sync_client=True) as client:
        [run] = client.read_task_runs(task_run_filter=TaskRunFilter(name={"like_": "once-more"}))  # type: ignore[arg-type]
        states = client.read_task_run_states(run.id)
    assert ("Retrying", REASON) in {(state.name, state.message) for state in states}
