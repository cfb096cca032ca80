"""What Prefect is told of a job that pauses: the reason, and nothing of where its store is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client

from dray.errors import StoreFatalError
from dray.store import JobState, open_store
from flows import batch_inference as module
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions
from tasks.flushing import flush_prefect
from tests.support.command import write_requests
from tests.support.no_cluster import no_cluster
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.integration

FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON shards EXECUTE FUNCTION full_disk();
"""
USER = "kanariuser"
REASON = "(PostgreSQL): the server's disk is full: free space, then resume the job (SQLSTATE 53100)"


def answer(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    with get_client(sync_client=True) as client:
        return client._client.request(method, path, json=body).raise_for_status().json()


def until(found: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return value


def paused_event() -> dict[str, Any] | None:
    """That of this file's job: the server has events of other tests' jobs, too."""
    about = {"id": ["dray.job.paused-job"]}
    events = answer("POST", "/events/filter", {"limit": 50, "filter": {"resource": about}})["events"]
    return next((event for event in events if event["event"] == "dray.job.paused"), None)


@pytest.mark.heavy
def test_a_full_disk_is_told_without_user_and_host(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = postgres_url.rsplit("/", 1)[1]
    with postgres.connect(name) as connection:
        connection.execute(f"CREATE ROLE {USER} SUPERUSER LOGIN PASSWORD 'kanarisecret'")
        connection.execute(FULL)
    host = f"127.0.0.1:{postgres.port}"
    monkeypatch.setenv("PAUSED_STORE", f"postgresql://{USER}:kanarisecret@{host}/{name}")
    monkeypatch.setattr(module, "cluster_of", no_cluster)
    with pytest.raises(StoreFatalError):
        batch_inference(
            input=str(write_requests(tmp_path / "requests.jsonl", 3)),
            model="any",
            output=str(tmp_path / "out"),
            job_id="paused-job",
            store="env:PAUSED_STORE",
            engine=EngineOptions(name="simulated"),
        )
    flush_prefect()
    with open_store(postgres_url, create=False) as store:
        job = store.get_job("paused-job")
    assert (job.state, job.reason) == (JobState.PAUSED, f"store {name} {REASON}")
    event = until(paused_event)
    assert event["payload"]["reason"] == job.reason
    (about,) = {one["prefect.resource.id"] for one in event["related"] if "flow-run." in json.dumps(one)}
    run_id = about.removeprefix("prefect.flow-run.")
    body = {"flow_runs": {"id": {"any_": [run_id]}}}
    shown = [
        event,
        answer("GET", f"/flow_runs/{run_id}"),
        answer("GET", f"/flow_run_states/?flow_run_id={run_id}"),
        answer("POST", "/task_runs/filter", body),
        answer("POST", "/logs/filter", {"logs": {"flow_run_id": {"any_": [run_id]}}}),
    ]
    assert REASON in shown[1]["state"]["message"]
    assert [REASON in json.dumps(one) for one in shown] == [True] * 5
    texts = [json.dumps(one) for one in shown]
    assert not [text for text in texts if USER in text or host in text or "kanarisecret" in text]
