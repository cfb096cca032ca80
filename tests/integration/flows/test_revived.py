"""A flow run that is started again: by a person it revives a cancelled job, by the automation it does not."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import (
    ConcurrencyLimitStrategy,
    ConcurrencyOptions,
    State,
    StateType,
)
from prefect.states import AwaitingRetry, Cancelled, Cancelling, Failed, Pending, Running, Suspended

from dray.job import current_job
from dray.job.beginning import opening as jobs
from dray.job.beginning.opening import open_job
from dray.job.driverless import cancel_or_ask
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.store import Job, JobState, open_store
from tasks import last_run, opening
from tasks.stopping import rest_cancelled
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
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobSettings:
    from dray.requests.sources import RowDefaults, source_of

    monkeypatch.setattr(opening, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(jobs, "owner_name", lambda: "here/1/1/x")
    return JobSettings(
        source=source_of(str(write_requests(tmp_path / "in.jsonl", 3))),
        defaults=RowDefaults(),
        model="m",
        output=str(tmp_path / "out"),
        store_url=f"sqlite:///{tmp_path / 'dray.db'}",
        engine="simulated",
        job_id="job",
    )


@pytest.fixture
def cancelled_job(settings: JobSettings) -> JobSettings:
    """A job that paused, and that its user cancelled then."""
    pause(open_job(settings))
    with open_store(settings.store_url) as store:
        assert cancel_or_ask(store, "job")
    return settings


def pause(job: OpenJob) -> None:
    with open_store(job.settings.store_url) as store:
        store.pause_job(job.lease, reason="suspended in Prefect")
        store.release_job(job.lease)


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


def test_a_retry_that_waits_is_older_than_the_cancel_that_follows_it(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was busy, and its user thought better of it: the last word was the cancel."""
    monkeypatch.setattr(opening, "_CLOCKS_APART", 0.0)
    pause(open_job(settings))
    run_id = a_run(Pending(), Running(), Failed(), AwaitingRetry())
    with open_store(settings.store_url) as store:
        assert cancel_or_ask(store, "job")
    as_buttons(run_id, Pending(), Running())
    found = opened(settings, run_id, monkeypatch)
    assert isinstance(found, opening.Declined)
    assert found.cancelled
    as_buttons(run_id, Cancelled(), AwaitingRetry(), Pending(), Running())
    assert isinstance(opened(settings, run_id, monkeypatch), OpenJob)


def kept(settings: JobSettings) -> Job:
    with open_store(settings.store_url, create=False) as store:
        return store.get_job("job")


def driven_by(run_id: UUID, settings: JobSettings, monkeypatch: pytest.MonkeyPatch) -> OpenJob:
    """The job, as a deployment's run has it."""
    with monkeypatch.context() as patch:
        patch.setattr(last_run, "in_deployment", lambda: True)
        job = opened(settings, run_id, patch)
    assert isinstance(job, OpenJob)
    return job


def as_buttons(run_id: UUID, *states: State[Any]) -> str:
    """Set the run's states; the name of the one that it has then. What Cancel does, the server decides.

    The others it allows runs of deployments alone, which these are not.
    """
    with get_client(sync_client=True) as client:
        for state in states:
            client.set_flow_run_state(run_id, state, force=state.name != "Cancelling")
        return str(client.read_flow_run(run_id).state_name)


WAITS = [
    [Suspended(), Cancelling()],  # as a user does
    [Failed(), by_automation(), Cancelling()],  # a run that resume.yaml starts, and that waits for the worker
]


@pytest.mark.parametrize("then", WAITS)
def test_a_cancel_of_a_run_that_only_waits_is_of_its_job(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch, then: list[State[Any]]
) -> None:
    """No process of the run was there to hear it: the next scheduled run went on with the job."""
    first = a_run(Pending(), Running())
    pause(driven_by(first, settings, monkeypatch))
    assert as_buttons(first, *then) == "Cancelled"
    found = opened(settings, a_run(Pending(), Running()), monkeypatch)
    assert isinstance(found, opening.Declined)
    assert found.cancelled
    assert "`dray resume job" in found.reason
    job = kept(settings)
    assert (job.state, job.reason, job.driver) == (JobState.CANCELLED, "cancelled in Prefect", None)
    assert job.cancelled_at is not None
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(a_run(Pending(), Running())))
    assert isinstance(inspect.unwrap(opening.open_job)(settings, 0.0, resume=True), OpenJob)


def no_slot() -> State[Any]:
    """What Prefect's server makes of the second run of a deployment that takes one at a time."""
    one = ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(
            client.create_flow(any_flow), name=f"one-{uuid4()}", concurrency_limit=1, concurrency_options=one
        )
        first, second = (client.create_flow_run_from_deployment(deployment).id for _ in range(2))
        client.set_flow_run_state(first, Pending())
        client.set_flow_run_state(second, Pending())
        state = client.read_flow_run(second).state
    assert state is not None
    assert state.name == "Cancelled"
    return Cancelled(message=state.message)


def test_a_run_that_prefect_itself_cancelled_leaves_its_job_to_the_next_one(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment of the user's with ``collision_strategy: CANCEL_NEW``: another run had the slot."""
    refused = no_slot()
    waits: list[list[State[Any]]] = [[Suspended(), AwaitingRetry()], [Failed(), by_automation(), late()]]
    for begun in waits:
        first = a_run(Pending(), Running())
        pause(driven_by(first, settings, monkeypatch))
        as_buttons(first, *begun, refused)
        job = opened(settings, a_run(Pending(), Running()), monkeypatch)
        assert isinstance(job, OpenJob)
        pause(job)


def test_a_suspended_run_without_a_cancel_leaves_its_job_to_the_next_one(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = a_run(Pending(), Running())
    pause(driven_by(first, settings, monkeypatch))
    assert as_buttons(first, Suspended()) == "Suspended"
    assert isinstance(opened(settings, a_run(Pending(), Running()), monkeypatch), OpenJob)


def test_the_retry_of_a_run_that_was_cancelled_while_it_was_suspended_goes_on(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = a_run(Pending(), Running())
    first = a_run(Pending(), Running(), caller=above)
    pause(driven_by(first, settings, monkeypatch))
    as_buttons(above, Suspended(), Cancelling(), AwaitingRetry(), Pending(), Running())
    as_buttons(first, Cancelled())
    monkeypatch.setattr(current_job, "_driven", deque(maxlen=1))  # as in the next process
    assert isinstance(opened(settings, a_run(Pending(), Running(), caller=above), monkeypatch), OpenJob)


def test_an_old_cancel_is_not_heeded_once_the_job_went_on(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = a_run(Pending(), Running())
    pause(driven_by(first, settings, monkeypatch))
    pause(open_job(settings, resume=True))  # a command, without Prefect
    as_buttons(first, Cancelled())
    assert isinstance(opened(settings, a_run(Pending(), Running()), monkeypatch), OpenJob)


def test_a_run_whose_process_was_told_to_end_is_no_cancelled_job(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C or a timeout: the run ends as cancelled, and the same call goes on."""
    first = a_run(Pending(), Running())
    rest_cancelled(driven_by(first, settings, monkeypatch), release=True, for_good=False)
    as_buttons(first, Cancelled())
    assert isinstance(opened(settings, a_run(Pending(), Running()), monkeypatch), OpenJob)


def test_a_run_that_prefect_does_not_know_stops_nothing(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was deleted, or was another server's."""
    pause(driven_by(uuid4(), settings, monkeypatch))
    assert isinstance(opened(settings, a_run(Pending(), Running()), monkeypatch), OpenJob)
