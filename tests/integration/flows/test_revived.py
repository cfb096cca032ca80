"""A flow run that is started again: by a person it revives a cancelled job, by the automation it does not."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.states import AwaitingRetry, Cancelled, Failed, Pending, Running

from dray.job import current_job
from dray.job.beginning import opening as jobs
from dray.job.beginning.opening import open_job
from dray.job.driverless import cancel_or_ask
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.store import JobState, open_store
from tasks import opening
from tests.support.command import write_requests

pytestmark = pytest.mark.integration

RESUME = Path(__file__).parents[3] / "deployments" / "automations" / "resume.yaml"


@flow
def any_flow() -> None:
    """What the flow runs are runs of."""


def by_automation() -> State[Any]:
    """The state that the shipped automation sets."""
    (action,) = yaml.safe_load(RESUME.read_text())["actions"]
    return State(type=StateType(action["state"]), name=action["name"], message=action["message"])


@task
def any_call() -> None:
    """What stands for a subflow in its caller's run."""


def late() -> State[Any]:
    """What Prefect's server makes of a scheduled run that no worker takes in time."""
    return State(type=StateType.SCHEDULED, name="Late")


def a_run(*states: State[Any], caller: UUID | None = None) -> UUID:
    """A flow run with a history, of a flow that the run ``caller`` called."""
    with get_client(sync_client=True) as client:
        call = None if caller is None else client.create_task_run(any_call, caller, dynamic_key="0").id
        run = client.create_flow_run(any_flow, parent_task_run_id=call)
        for state in states:
            client.set_flow_run_state(run.id, state, force=True)
    return run.id


@pytest.fixture
def cancelled_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSettings:
    """A job that paused, and that its user cancelled then."""
    from dray.requests.sources import RowDefaults, source_of

    monkeypatch.setattr(opening, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(jobs, "owner_name", lambda: "here/1/1/x")
    settings = JobSettings(
        source=source_of(str(write_requests(tmp_path / "in.jsonl", 3))),
        defaults=RowDefaults(),
        model="m",
        output=str(tmp_path / "out"),
        store_url=f"sqlite:///{tmp_path / 'dray.db'}",
        engine="simulated",
        job_id="job",
    )
    job = open_job(settings)
    with open_store(settings.store_url) as store:
        store.pause_job(job.lease, reason="the disk is full")
        store.release_job(job.lease)
        assert cancel_or_ask(store, "job")
    return settings


def opened(settings: JobSettings, run_id: UUID, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run_id))
    return inspect.unwrap(opening.open_job)(settings, 0.0)


def test_the_automation_leaves_a_cancelled_job_alone(
    cancelled_job: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for again in ([by_automation()], [by_automation(), late()]):
        run_id = a_run(Pending(), Running(), Failed(), *again, Pending(), Running())
        found = opened(cancelled_job, run_id, monkeypatch)
        assert isinstance(found, opening.Declined)
        assert found.cancelled
        with open_store(cancelled_job.store_url) as store:
            assert store.get_job("job").state is JobState.CANCELLED


def test_a_retry_by_a_person_goes_on_with_it(
    cancelled_job: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = a_run(Pending(), Running())  # or a container that restarts: it had not ended
    assert isinstance(opened(cancelled_job, first, monkeypatch), opening.Declined)
    begun = [Pending(), Running(), Failed(), by_automation(), Pending(), Running(), Failed()]
    retried = a_run(*begun, AwaitingRetry(), late(), Pending(), Running())
    found = opened(cancelled_job, retried, monkeypatch)
    assert isinstance(found, OpenJob)


@pytest.mark.heavy
def test_a_retry_of_the_flow_that_calls_it_goes_on_with_it(
    cancelled_job: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try of that flow calls a new run, unless it goes on in the process that heard the cancel."""
    ended: list[State[Any]] = [Pending(), Running(), Cancelled()]
    by_person = a_run(*ended, AwaitingRetry(), Pending(), Running())
    run_id = a_run(Pending(), Running(), caller=by_person)
    assert isinstance(opened(cancelled_job, run_id, monkeypatch), opening.Declined)
    monkeypatch.setattr(current_job, "_driven", deque(maxlen=1))  # as in the next process
    for again in ([], [by_automation()]):
        run_id = a_run(Pending(), Running(), caller=a_run(*ended, *again))
        assert isinstance(opened(cancelled_job, run_id, monkeypatch), opening.Declined)
    run_id = a_run(Pending(), Running(), caller=by_person)
    assert isinstance(opened(cancelled_job, run_id, monkeypatch), OpenJob)
