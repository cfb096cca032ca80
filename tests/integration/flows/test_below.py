"""What a run knows of the flows above it: that a deployment started them, and that a user cancelled one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow, runtime, task
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.states import Cancelling

from dray.errors import InputError
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions
from tasks.prefect_run import in_deployment, is_cancelled, of_deployment

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
