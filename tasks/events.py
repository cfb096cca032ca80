"""Events of dray's own in Prefect, for its automations. docs/prefect.md lists names and payloads.

Payloads hold figures, names and reasons; never prompts, answers, secrets, or a database's user or host.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from prefect.context import FlowRunContext
from prefect.events import emit_event

JOB = "dray.job"
NODE = "dray.node"


def tell_of_job(job_id: str, what: str, payload: Mapping[str, Any]) -> None:
    """Send ``dray.job.WHAT`` about a job."""
    _tell(f"{JOB}.{what}", _resource(JOB, job_id), {"job_id": job_id, **payload}, [])


def tell_of_node(job_id: str, node: str, what: str, payload: Mapping[str, Any]) -> None:
    """Send ``dray.node.WHAT`` about a node of a job's cluster."""
    related = [{**_resource(JOB, job_id), "prefect.resource.role": "job"}]
    _tell(f"{NODE}.{what}", _resource(NODE, node), {"job_id": job_id, "node": node, **payload}, related)


def _resource(kind: str, name: str) -> dict[str, str]:
    return {"prefect.resource.id": f"{kind}.{name}", "prefect.resource.name": name}


def _tell(
    event: str, resource: dict[str, str], payload: dict[str, Any], related: list[dict[str, str]]
) -> None:
    """Queue an event. Prefect adds flow run, flow, deployment and work pool as related resources."""
    if FlowRunContext.get() is None:
        return  # not in a flow run: Prefect would start a server for the event
    with suppress(Exception):  # events are for people and automations; no job depends on one
        emit_event(event=event, resource=resource, payload=payload, related=related)
