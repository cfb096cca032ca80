"""What a job will take, as a Prefect flow: its run's page shows the plans in a table."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger, runtime
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from dray.job.options.resolving import refuse_password, refuse_passwords
from dray.job.options.spelling import in_parameters
from dray.job_plan import JobPlan, PlanRequest, plan_job
from dray.job_plan.wording import HEADER, markdown_of, table_of
from flows.naming import named, named_input
from flows.own_server import with_own_server
from flows.parameters import parameters_of
from flows.resolving import PrefectBlocks
from tasks.page import artifact_key
from tasks.prefect_run import in_own_run, scheduled_time

_SHOWN = 20


def _run_name() -> str:
    """``plan INPUT on MODEL``: what the list of flow runs shows."""
    given: dict[str, Any] = runtime.flow_run.parameters
    return f"plan {named_input(given, 1)} on {named(given['model'], 1)}"


@with_own_server
@flow(name="plan", flow_run_name=_run_name, retries=0, persist_result=False, validate_parameters=True)
@parameters_of(PlanRequest)
def plan(*values: Any, **options: Any) -> JobPlan:
    """Say what a batch will take, on which GPUs and settings: dollars and time. Starts nothing.

    Its parameters are the fields of :class:`PlanRequest`, in their order, by position or by name. The plans
    are a table among the run's artifacts, and why the first is first stands in another.
    """
    request = PlanRequest.of(*values, **options).dated(scheduled_time())
    refuse_passwords(request.input, request.rows.query)
    refuse_password(request.store or "")
    with in_own_run(), in_parameters(PlanRequest):
        logger = get_run_logger()
        found = plan_job(request, PrefectBlocks(), say=logger.info)
        logger.info("%s", found.why)
        _show(found)
    return found


def _show(found: JobPlan) -> None:
    key = artifact_key(found.model.name, "plan")
    create_markdown_artifact(markdown_of(found, most=0), key=f"{key}-why", description=found.why)
    rows = [dict(zip(HEADER, cells, strict=True)) for cells in table_of(found, _SHOWN)]
    create_table_artifact(rows, key=key, description=found.why)


if __name__ == "__main__":
    plan.serve(name="plan")
