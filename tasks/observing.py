"""What a running job shows in Prefect: its progress artifact, and events for automations."""

from __future__ import annotations

from dray.driver.events import (
    CapacityDecided,
    CapacityMissing,
    ErrorShareReached,
    Event,
    MarketDecided,
    NodeLost,
    Progressed,
)
from tasks.events import tell_of_job, tell_of_node
from tasks.progress_artifact import ProgressArtifact


class PrefectObserver:
    """Passes a driver's events on. None of its calls waits for Prefect's API."""

    def __init__(self, job_id: str, artifact: ProgressArtifact) -> None:
        self._job_id = job_id
        self._artifact = artifact

    def hear(self, event: Event) -> None:
        """Pass it on, where Prefect has a place for it."""
        if isinstance(event, Progressed):
            pulse = event.pulse
            self._artifact.show(100.0 * pulse.finished / pulse.total if pulse.total else 100.0)
        elif isinstance(event, ErrorShareReached):
            self._tell_of_errors(event)
        elif isinstance(event, CapacityDecided | CapacityMissing):
            counts = {"before": event.before, "replicas": event.replicas}
            tell_of_job(self._job_id, "capacity", {**counts, "reason": event.reason})
        elif isinstance(event, MarketDecided):
            tell_of_job(self._job_id, "market", {"on_demand": event.on_demand, "reason": event.reason})
        elif isinstance(event, NodeLost):
            payload = {"cause": event.cause, "replica": event.replica}
            tell_of_node(self._job_id, event.node, "lost", payload)

    def _tell_of_errors(self, event: ErrorShareReached) -> None:
        rows = {"failed": event.failed, "finished": event.finished, "total": event.total}
        share = round(event.failed / event.finished, 4)
        tell_of_job(self._job_id, "error-share", {"reached": event.reached, "share": share, **rows})
