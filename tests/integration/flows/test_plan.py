"""The flow that plans leaves a table of plans, and why the first is first, on its run's page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client

from flows.plan import plan

pytestmark = pytest.mark.integration

TICKETS = Path(__file__).parents[3] / "examples/tickets"


@pytest.mark.heavy(one_of=3)
def test_the_plans_are_artifacts_of_the_run() -> None:
    found = plan(str(TICKETS / "requests.jsonl"), str(TICKETS / "model"), hardware=["l40s"], sample=10)
    assert found.workload.rows == 2000
    with get_client(sync_client=True) as client:
        kept = {one.key: one for one in client.read_artifacts() if (one.key or "").startswith("model-plan")}
    assert {"model-plan", "model-plan-why"} <= kept.keys()
    rows = json.loads(str(kept["model-plan"].data))
    assert [row["#"] for row in rows] == [str(number) for number in range(1, len(found.best) + 1)]
    assert {row["hardware"].split(" ")[2] for row in rows} == {"g6e.xlarge", "g6e.12xlarge"}
    assert found.why in str(kept["model-plan-why"].data)
