"""Whatever fails in the flow, before its cluster or after it, ends the job in the store and frees it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import CancelledRun, ObjectNotFound, Pause
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.states import Cancelling, Suspended
from prefect.utilities.engine import propose_state_sync

from dray.driver import whole_job
from dray.errors import (
    ClusterError,
    ConfigError,
    DrayError,
    JobBusyError,
    JobFailedError,
    StoreFatalError,
    UnknownJobError,
)
from dray.job.beginning import opening
from dray.job.ending.result import JobResult
from dray.job.open_job import OpenJob
from dray.store import Job, JobState, Store, open_store
from flows import batch_inference as module
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions
from tasks import prefect_run
from tasks.finalise import finalise
from tasks.opening import open_job
from tasks.steps import STEPS
from tests.support.command import write_requests
from tests.support.no_cluster import no_cluster

pytestmark = pytest.mark.integration

JOB = "job"
DISK_FULL = StoreFatalError("store x: the disk is full: free space, then resume the job")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """Runs the flow without a cluster or engines, to the expected error; the job as it left it."""
    monkeypatch.setattr(module, "cluster_of", no_cluster)
    monkeypatch.setattr(whole_job, "open_shards", lambda *_: [])
    requests = write_requests(tmp_path / "requests.jsonl", 3)

    def run(expected: type[Exception] | None, **changes: Any) -> Job:
        with pytest.raises(expected) if expected else nullcontext():
            batch_inference(
                input=str(requests),
                model="any",
                output=str(tmp_path / "out"),
                job_id=JOB,
                engine=EngineOptions(name="simulated"),
                **changes,
            )
        with open_store(str(tmp_path / "out" / "dray.db")) as store:
            return store.get_job(JOB)

    return run


def _raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def _noting(propose: Callable[..., State], sent: list[State]) -> Callable[..., State]:
    def note(client: object, state: State, **options: Any) -> State:
        sent.append(state)
        return propose(client, state, **options)

    return note


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("place", "error", "state"),
    [
        ("cluster_of", ClusterError("no cluster"), JobState.FAILED),
        ("_end_state", DISK_FULL, JobState.PAUSED),
        ("finalise", DISK_FULL, JobState.PAUSED),
        ("finalise", JobFailedError("out/output.jsonl cannot be written"), JobState.FAILED),
    ],
)
def test_a_job_whose_end_fails_is_at_rest_and_says_why(
    place: str,
    error: DrayError,
    state: JobState,
    run: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, place, _raising(error))
    job = run(type(error))
    assert (job.state, job.driver) == (state, None)
    assert job.reason == str(error)


def test_the_lease_is_kept_to_the_end(
    run: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(opening, "DRIVER_TTL", 1.5)

    def long_end(_: object) -> None:
        time.sleep(2.5)
        with open_store(str(tmp_path / "out" / "dray.db")) as store:
            store.claim_job(JOB, "another")

    monkeypatch.setattr(module, "_end_state", long_end)
    run(JobBusyError)


def test_a_cluster_that_nobody_knows_is_refused_before_there_is_a_job(
    run: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_job", lambda *_: pytest.fail("the job was opened"))
    with pytest.raises(UnknownJobError):
        run(ConfigError, cluster="block:no-such")


def test_a_job_that_is_cancelled_while_it_is_taken_in_stays_so_until_it_is_resumed(
    run: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither its command repeated, as a restart policy does it, nor a schedule revives it."""

    def cancelled_at_once(*arguments: Any, **options: Any) -> OpenJob:
        job = open_job(*arguments, **options)
        assert isinstance(job, OpenJob)
        with open_store(job.settings.store_url, create=False) as store:
            store.request_cancel(job.job_id)
        return job

    with monkeypatch.context() as patch:
        patch.setattr(module, "open_job", cancelled_at_once)
        job = run(CancelledRun)
    assert (job.state, job.driver, job.total, job.epoch) == (JobState.CANCELLED, None, None, 1)
    assert f"`dray resume job --store {tmp_path / 'out'}` goes on" in (job.reason or "")
    assert run(CancelledRun).epoch == 1
    monkeypatch.setattr(module, "_end_state", lambda _: JobState.EXPIRED)
    job = run(None, resume=True)
    assert (job.total, job.epoch, job.cancelled_at) == (3, 2, None)


def test_a_cancel_after_ingest_asks_for_no_replicas(
    run: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:

    def cancelled_after(job: OpenJob, *arguments: Any, **options: Any) -> Any:
        shards = STEPS.ingest(job, *arguments, **options)
        with open_store(job.settings.store_url, create=False) as store:
            store.request_cancel(job.job_id)
        return shards

    monkeypatch.setattr(module, "STEPS", replace(STEPS, ingest=cancelled_after))
    monkeypatch.setattr(whole_job, "open_shards", lambda shards: shards)
    assert run(CancelledRun).state is JobState.CANCELLED


def test_a_store_that_goes_when_the_job_is_done_fails_it_no_more(
    run: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_end_state", lambda _: JobState.EXPIRED)
    monkeypatch.setattr(Store, "release_job", _raising(DISK_FULL))
    job = run(None)
    assert (job.state, job.reason) == (JobState.EXPIRED, None)


def test_a_log_without_a_reader_does_not_end_the_job(
    run: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's worker was killed; or a script's log went to ``head``, which has ended."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        handler = PrefectConsoleHandler(stream)
        logging.getLogger("prefect").addHandler(handler)

        def expired(_: object) -> JobState:
            os.close(reader)
            return JobState.EXPIRED

        monkeypatch.setattr(module, "_end_state", expired)
        try:
            assert run(None).state is JobState.EXPIRED
        finally:
            logging.getLogger("prefect").removeHandler(handler)


def test_a_run_that_is_deleted_in_prefect_gives_its_caller_the_result(
    run: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waited a minute for a server that answered, and ended with an error of Prefect's.

    The run is not deleted here: with events of such a run's tasks, Prefect's server fails for other tests.
    """
    monkeypatch.setattr(module, "_end_state", lambda _: JobState.EXPIRED)
    monkeypatch.setattr(prefect_run, "state_of_run", _raising(ObjectNotFound(http_exc=Exception("404"))))
    sent: list[State] = []
    monkeypatch.setattr("prefect.flow_engine.propose_state_sync", _noting(propose_state_sync, sent))
    began = time.monotonic()
    assert run(None).state is JobState.EXPIRED
    assert time.monotonic() - began < 30
    assert "this flow run was deleted in Prefect; its job" in caplog.text
    assert [state.name for state in sent] == ["Running"]


@pytest.mark.parametrize("own_process", [True, False])
def test_a_cancel_of_a_job_that_is_done_leaves_its_run_completed(
    run: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, own_process: bool
) -> None:
    """Prefect refuses a run that is Cancelling any end but Cancelled: it stayed so, and its caller failed."""
    own: list[UUID] = []

    def cancelled_late(*arguments: Any) -> JobResult:
        result = finalise(*arguments)
        own.append(UUID(str(runtime.flow_run.id)))
        if own_process:
            monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(own[0]))
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(own[0], Cancelling(), force=True)
        return result

    monkeypatch.setattr(module, "_end_state", lambda _: JobState.EXPIRED)
    monkeypatch.setattr(module, "finalise", cancelled_late)
    assert run(None).state is JobState.EXPIRED
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(own[0]).state
    assert state is not None
    assert (state.type, state.name) == (StateType.COMPLETED, "Expired")
    assert (state.message or "").startswith("its time is over: ")


@pytest.mark.parametrize("of_caller", [False, True])
def test_a_suspend_of_a_job_that_is_done_leaves_its_run_completed(
    run: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, of_caller: bool
) -> None:
    """The run stayed Suspended, and failed when the button's time was over; one below stayed Running."""
    own: list[UUID] = []

    def suspended_late(*arguments: Any) -> JobResult:
        result = finalise(*arguments)
        own.append(UUID(str(runtime.flow_run.id)))
        state: State[Any] = Suspended(timeout_seconds=300)
        with get_client(sync_client=True) as client:
            if not of_caller:
                client.set_flow_run_state(own[0], state, force=True)
        context = FlowRunContext.get()
        assert context is not None
        context.flow_run_suspension_request.mark_requested(state)  # as Prefect's engine hears of the button
        return result

    @flow
    def nightly() -> None:
        run(None)

    monkeypatch.setattr(module, "_end_state", lambda _: JobState.EXPIRED)
    monkeypatch.setattr(module, "finalise", suspended_late)
    if of_caller:
        with pytest.raises(Pause):  # its own end: it is the caller that stays suspended
            nightly()
    else:
        assert run(None).state is JobState.EXPIRED
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(own[0]).state
    assert state is not None
    assert (state.type, state.name) == (StateType.COMPLETED, "Expired")
