"""What a run knows of the flows above it: that a deployment started them, and that a user cancelled one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, runtime, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry, Cancelling, Scheduled, Suspended

from dray.driver import whole_job
from dray.errors import InputError, JobFailedError
from dray.job.open_job import reopen
from dray.job.options.settings import JobSettings
from dray.store import JobState
from flows import batch_inference as module
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions
from tasks.prefect_run import in_deployment, is_cancelled, of_deployment
from tasks.steps import STEPS
from tests.support.command import write_requests
from tests.support.no_cluster import no_cluster

pytestmark = pytest.mark.integration

SIMULATED = EngineOptions(name="simulated")

seen: dict[str, object] = {}


@flow
def job() -> None:
    seen["deployment"] = (of_deployment(), in_deployment())
    seen["before"] = is_cancelled()
    with get_client(sync_client=True) as client:
        above = UUID(str(runtime.flow_run.root_flow_run_id))
        client.set_flow_run_state(above, Cancelling(), force=True)
    seen["after"] = is_cancelled()


@task
def between() -> None:
    job()


@flow
def parent() -> None:
    between()


@pytest.mark.heavy(one_of=3)
def test_a_job_below_a_deployments_flow_belongs_to_it_and_hears_its_cancel() -> None:
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(parent), name="nightly")
        run = client.create_flow_run_from_deployment(deployment)
    with suppress(BaseException):  # its end, as a cancelled run's, is Prefect's business
        run_flow(parent, flow_run=run)
    assert seen == {"deployment": (False, True), "before": False, "after": True}


def test_a_job_below_a_flow_that_no_deployment_started() -> None:
    with suppress(BaseException):
        parent()
    assert seen["deployment"] == (False, False)


def test_a_job_that_a_task_calls_logs_on_its_own_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lines would else be the task's, on the page of the flow above."""

    @task
    async def calls() -> None:
        batch_inference(str(tmp_path / "none.jsonl"), "m", str(tmp_path / "out"), engine=SIMULATED)

    @flow
    async def above() -> None:
        await calls()

    with pytest.raises(InputError):
        asyncio.run(above())
    (line,) = (one for one in caplog.records if "blocks its caller's event loop" in one.message)
    assert line.name == "prefect.flow_runs"
    assert vars(line)["flow_run_name"].endswith("none.jsonl on m")


def test_a_job_has_the_day_for_which_the_flow_above_it_was_scheduled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is late, or is retried days later, takes the rows of its own night."""
    before = datetime.now(UTC) - timedelta(days=2)
    write_requests(tmp_path / f"{before:%Y-%m-%d}.jsonl", 3)
    opened: list[tuple[str | None, str]] = []

    def open_job(settings: JobSettings, *_: object, **__: object) -> None:
        opened.append((settings.job_id, settings.output))
        raise JobFailedError("the test goes no further")

    monkeypatch.setattr(module, "open_job", open_job)

    @flow
    def nightly() -> None:
        batch_inference(
            str(tmp_path / "{date}.jsonl"),
            "m",
            str(tmp_path / "out-{date}"),
            job_id="job-{date}",
            engine=SIMULATED,
        )

    @flow
    def outermost() -> None:
        nightly()

    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(outermost), name="late")
        run = client.create_flow_run_from_deployment(deployment, state=Scheduled(scheduled_time=before))
        for _ in range(2):
            with pytest.raises(JobFailedError):
                run_flow(outermost, flow_run=client.read_flow_run(run.id))
            client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
        names = {one.name for one in client.read_flow_runs()}
    assert opened == 2 * [(f"job-{before:%Y-%m-%d}", str(tmp_path / f"out-{before:%Y-%m-%d}"))]
    assert f"job-{before:%Y-%m-%d} on m" in names


def suspend(run: UUID) -> None:
    """The button of the run's page, as its server and Prefect's engine in its process know of it."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, Suspended(timeout_seconds=300), force=True)
    context = FlowRunContext.get()
    assert context is not None
    context.flow_run_suspension_request.mark_requested(Suspended(timeout_seconds=300))


@pytest.mark.parametrize("place", ["open_job", "ingest", "end_state"])
def test_a_job_whose_calling_flow_is_suspended_shows_it_and_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It stayed Running without heartbeats: the automation crashed.yaml took its process for gone."""
    requests = write_requests(tmp_path / "in.jsonl", 3)
    monkeypatch.setattr(module, "cluster_of", no_cluster)
    monkeypatch.setattr(whole_job, "open_shards", lambda *_: [])
    is_step = place == "ingest"
    work = getattr(STEPS if is_step else module, place)

    @flow
    def nightly() -> None:
        batch_inference(str(requests), "m", str(tmp_path / "out"), job_id="job", engine=SIMULATED)

    def and_suspended(job: Any, *arguments: Any, **options: Any) -> Any:
        suspend(UUID(str(runtime.flow_run.root_flow_run_id)))
        if place != "end_state":
            return work(job, *arguments, **options)
        with reopen(job) as store:
            store.pause_job(job.lease, reason="suspended in Prefect")
        return JobState.PAUSED

    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(nightly), name="suspended")
        run = client.create_flow_run_from_deployment(deployment)
        with monkeypatch.context() as patch, pytest.raises(Pause):
            if is_step:
                patch.setattr(module, "STEPS", replace(STEPS, **{place: and_suspended}))
            else:
                patch.setattr(module, place, and_suspended)
            run_flow(nightly, flow_run=run)
        (below,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id={"any_": [run.id]}))  # type: ignore[arg-type]
        assert below.state is not None
        assert (below.state.name, client.read_flow_run(run.id).state_name) == ("Suspended", "Suspended")
        assert "resume that one" in (below.state.message or "")

        client.resume_flow_run(run.id)
        monkeypatch.setattr(module, "end_state", lambda _: JobState.EXPIRED)
        run_flow(nightly, flow_run=client.read_flow_run(run.id))
        (below,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id={"any_": [run.id]}))  # type: ignore[arg-type]
        assert (below.state_name, client.read_flow_run(run.id).state_name) == ("Expired", "Completed")
