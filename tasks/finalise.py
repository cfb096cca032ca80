"""Write the outputs and the report."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from dray.errors import StoreError
from dray.job.finalising import JobResult, ReplicaAccount, cancelled_message, finalise_job
from dray.job.opening import OpenJob
from dray.job.timeline import Timeline
from dray.report import ReportData, render_markdown
from dray.requests.files import local_path
from dray.requests.objects import is_object
from dray.store import JobState, open_store


@task(name="finalise", task_run_name="finalise", persist_result=False, cache_policy=NO_CACHE)
def finalise(
    job: OpenJob, timeline: Timeline, replicas: Sequence[ReplicaAccount], state: JobState
) -> JobResult:
    """Publish output, errors and report; link them in the Prefect UI."""
    get_run_logger().info("writing output, errors and report")
    result = finalise_job(job, timeline, replicas, state=state)
    data = _given_back(job)
    if data is not None:
        _show(job, data, result.report)
    if result.report is None:
        get_run_logger().info(cancelled_message(result.job_id))
    else:
        get_run_logger().info("job %s is %s: report at %s", result.job_id, result.state, result.report)
    return result


def _given_back(job: OpenJob) -> ReportData | None:
    """The report of a job that is done, and given back; None where the store went away: it is done anyhow."""
    try:
        with open_store(job.settings.store_url, create=False) as store:
            store.release_job(job.lease)
            return ReportData.from_json(store.get_job(job.job_id).summary["report"])
    except StoreError as error:
        get_run_logger().warning("the report is not in Prefect's UI: %s", type(error).__name__)
        return None


def _show(job: OpenJob, data: ReportData, uri: str | None) -> None:
    """The report in the UI is for people: its API being away must not fail a job that is done."""
    try:
        report = render_markdown(data)
        create_markdown_artifact(report, key="batch-report", description=f"Job {job.job_id}")
        if uri is None:
            return
        link = _link(uri)
        # A browser opens a local file only when its address is typed.
        create_link_artifact(link, key="batch-report-html", link_text=link, description="The HTML report")
    except Exception as error:  # noqa: BLE001  see above
        get_run_logger().warning("the report is not in Prefect's UI: %s", type(error).__name__)


def _link(uri: str) -> str:
    return uri if is_object(uri) else local_path(uri).resolve().as_uri()
