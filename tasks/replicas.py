"""Start the replicas: a step of the driver that people see as a task of its own."""

from __future__ import annotations

from dray.driver.run import Driver
from tasks.settling import step


@step("start replicas")
def start_replicas(driver: Driver) -> bool:
    """Wait until a replica can take work: others may come later. False when the job is to stop.

    Raises:
        EngineStartError, ConfigError: none can be started, or not in time.
        DrayError: the job cannot go on.
    """
    return driver.until_ready()
