"""The steps of a run as tasks that people see in Prefect."""

from __future__ import annotations

from dray.driver.run import Driver
from dray.driver.whole_job import Steps, provision
from dray.job.rows.ingesting import ingest_told
from tasks.settling import step


def _start_replicas(driver: Driver) -> bool:
    """Wait until a replica can take work: others may come later. False when the job is to stop."""
    return driver.until_ready()


STEPS = Steps(
    ingest=step("ingest")(ingest_told),
    provision=step("provision cluster")(provision),
    start_replicas=step("start replicas")(_start_replicas),
)
