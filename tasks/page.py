"""What a job leaves on its run's page in Prefect: one set of artifacts for each job."""

from __future__ import annotations

import hashlib
import re

from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact

from dray.errors import DrayError
from dray.job.ending.result import JobResult
from dray.job.open_job import OpenJob, reopen
from dray.report import ReportData, render_markdown
from dray.report.artifact import web_address
from dray.storage.files import local_path
from dray.storage.objects import is_object

_LONGEST = 60


def artifact_key(job_id: str, what: str) -> str:
    """The key of a job's artifact: lower-case letters, digits and dashes, one for each job id."""
    slug = re.sub(r"[^a-z0-9]+", "-", job_id.lower()).strip("-")[:_LONGEST].strip("-")
    if slug != job_id:
        digest = hashlib.sha256(job_id.encode()).hexdigest()[:8]
        slug = f"{slug}-{digest}" if slug else digest
    return f"{slug}-{what}"


def show_report(job: OpenJob, result: JobResult) -> None:
    """The report's figures as text, where its files lie, and a link where a browser can follow one.

    For people: whatever is away must not fail a job that is done.
    """
    try:
        with reopen(job) as store:
            data = ReportData.from_json(store.get_job(job.job_id).summary["report"])
        _show(job, data, result)
    except (DrayError, KeyError) as error:
        get_run_logger().warning("the report is not in Prefect's UI: %s", type(error).__name__)
    except Exception as error:  # noqa: BLE001  Prefect's API
        get_run_logger().warning("the report is not in Prefect's UI: %s", type(error).__name__)


def _show(job: OpenJob, data: ReportData, result: JobResult) -> None:
    job_id = job.job_id
    uri = result.report  # None where the job was cancelled: it has no files
    links = {} if uri is None else {"HTML report": uri if is_object(uri) else str(local_path(uri))}
    create_markdown_artifact(
        render_markdown(data, links=links),
        key=artifact_key(job_id, "report"),
        description=f"Job {job_id}",
    )
    address = None if uri is None else web_address(uri, job.settings.objects)
    if address is not None:  # browsers follow no link from a page of Prefect's to a local file
        create_link_artifact(
            address,
            key=artifact_key(job_id, "report-link"),
            link_text="The HTML report",
            description=f"Job {job_id}",
        )
