"""The bill of whole jobs, on replicas in threads: with and without a replica that is lost with its node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dray.account import Phase
from dray.driver.whole_job import run_job
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.shard.backoff import NO_WAIT_VARIABLE
from dray.store import open_store
from tests.support.lanes import parts_on
from tests.support.thread_fleet import Script, ThreadFleet

pytestmark = pytest.mark.unit

PRICE = 3.6  # dollars per hour: 1,000 micro-dollars per second
ROW_SECONDS = 0.2
AT_ONCE = 4


@pytest.fixture
def settings(make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch) -> JobSettings:
    """50 rows on one replica: each takes 0.2 s, four at a time."""
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    arguments = {"seconds_per_token": ROW_SECONDS / 4, "max_num_seqs": AT_ONCE}
    return make_settings(
        shard_rows=50,
        replicas=1,
        job_id="job",
        engine_arguments=arguments,
        request=JobRequest(input=[], model="", output="", price=PRICE),
    )


def _cost(settings: JobSettings, script: Script) -> dict[str, Any]:
    fleet = ThreadFleet(["node-0", "node-1"], script)
    cost = run_job(settings, parts_on(fleet)).cost
    assert cost is not None
    assert round(sum(cost["parts"].values()), 6) == cost["dollars"]
    assert round(sum(cost["seconds"].values()), 6) == cost["node_seconds"]
    assert cost["dollars"] == pytest.approx(cost["node_seconds"] * PRICE / 3600, abs=1e-6)
    return cost


def test_a_run_without_losses_pays_for_none(settings: JobSettings) -> None:
    cost = _cost(settings, Script())
    assert cost["seconds"]["interrupted"] == cost["seconds"]["recomputed"] == 0
    assert cost["tokens"]["completion"] > 0
    assert cost["dollars_per_million_tokens"] == pytest.approx(
        cost["dollars"] * 1e6 / (cost["tokens"]["prompt"] + cost["tokens"]["completion"])
    )


def test_a_lost_replica_costs_the_rows_in_it_and_the_start_of_the_next(settings: JobSettings) -> None:
    """Lost before its third micro-batch, with four rows in the engine and what had not left it."""
    cost = _cost(settings, Script(lose=lambda replica, batch: (replica, batch) == (0, 3), flush=0.05))
    with open_store(settings.store_url, create=False) as store:
        spans = store.spans("job")
        published = store.committed_by_replica("job")
    first = {span.phase: span.micros / 1e6 for span in spans if span.replica == "replica-0"}
    assert len({span.node for span in spans if span.replica.startswith("replica-0")}) == 2
    kept = next(rows for name, rows in published.items() if name.endswith("replica-0"))
    worked = first[Phase.BUSY] + first.get(Phase.LOST, 0) + first.get(Phase.REPEATED, 0)
    wasted = worked - first[Phase.BUSY]
    assert 0 < kept < 50
    assert wasted > 0
    # The rows that were kept took a quarter of 0.2 s each, or more where other work slows the machine.
    assert first[Phase.BUSY] >= kept * ROW_SECONDS / AT_ONCE - ROW_SECONDS
    assert cost["seconds"]["interrupted"] + cost["seconds"]["recomputed"] >= wasted - 1e-6
