"""deployments/prefect.yaml as its users run it: a server, a worker, runs started as the UI starts them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from blocks import ObjectStoreCredentials, ResultStore
from dray.store import JobState, open_store
from tests.support.command import CANARY, committed, write_requests
from tests.support.prefect_server import PrefectServer, prefect_server

pytestmark = pytest.mark.acceptance

SECRET = "canary-51c8-secret"
RUN_SECONDS = 240.0
CANCEL_SECONDS = 30.0  # Prefect's worker kills what has not ended by then
SHARD = "shard 0"


@pytest.fixture(scope="module")
def server() -> Iterator[PrefectServer]:
    """Deployed as deployments/README.md says: a worker that makes its pool, then ``prefect deploy``."""
    with prefect_server() as server:
        server.worker = server.start("worker", "worker", "start", "--pool", "dray", "--type", "process")
        until(lambda: any(pool["name"] == "dray" for pool in server.post("/work_pools/filter")), 60)
        server.cli("deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        yield server


def start(server: PrefectServer, parameters: dict[str, Any]) -> str:
    """A custom run, as the UI's form asks for it; gives its id."""
    deployment = server.get("/deployments/name/batch-inference/tickets")
    body = {
        "parameters": deployment["parameters"] | parameters,
        "state": {"type": "SCHEDULED"},
        "enforce_parameter_schema": True,
    }
    return server.post(f"/deployments/{deployment['id']}/create_flow_run", body)["id"]


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not come within {seconds:.0f} s"
        time.sleep(0.2)


def processes(server: PrefectServer) -> list[psutil.Process]:
    """All that the worker's runs have started and that still lives: the flow, Ray, its workers."""
    assert server.worker is not None
    return psutil.Process(server.worker.pid).children(recursive=True)


def cancel(server: PrefectServer, run_id: str) -> dict[str, Any]:
    """Cancel as the UI does; gives the run once it has ended and nothing of it is left."""
    running = processes(server)
    assert any("raylet" in process.name() for process in running)
    began = time.monotonic()
    server.post(f"/flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    run = server.wait_for(run_id, CANCEL_SECONDS)
    left = CANCEL_SECONDS - (time.monotonic() - began)
    until(lambda: not any(process.is_running() for process in [*running, *processes(server)]), left)
    return run


def of_run(server: PrefectServer, kind: str, run_id: str) -> list[dict[str, Any]]:
    filters = {
        "logs": ("/logs/filter", {"logs": {"flow_run_id": {"any_": [run_id]}}}),
        "artifacts": ("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run_id]}}}),
        "task runs": ("/task_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}}),
    }
    return server.pages(*filters[kind])


def events(server: PrefectServer) -> list[dict[str, Any]]:
    page = server.post("/events/filter", {"limit": 50})
    found = list(page["events"])
    while page["next_page"]:
        page = server.get(page["next_page"].removeprefix(f"{server.url}/api"))
        found += page["events"]
    return found


def states(server: PrefectServer, run_id: str) -> list[str]:
    return [state["name"] for state in server.get(f"/flow_run_states/?flow_run_id={run_id}")]


def test_the_deployment_is_as_the_file_says(server: PrefectServer) -> None:
    deployment = server.get("/deployments/name/batch-inference/tickets")
    assert deployment["entrypoint"] == "flows.batch_inference.batch_inference"
    assert deployment["work_pool_name"] == "dray"
    assert deployment["global_concurrency_limit"]["limit"] == 1
    assert deployment["enforce_parameter_schema"]
    (schedule,) = deployment["schedules"]
    assert (schedule["slug"], schedule["active"]) == ("nightly", False)
    (step,) = deployment["pull_steps"]
    (place,) = step.values()
    assert Path(place["directory"]) == Path(__file__).parents[2]
    # A run is refused at once, not on the worker, when the form's values do not fit.
    with pytest.raises(AssertionError, match=r"409|422"):
        start(server, {"engine": {"name": "no-such-engine"}})


def test_a_run_started_as_the_ui_does(server: PrefectServer, tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", 50)
    database = tmp_path / f"{SECRET}.db"
    with temporary_settings({PREFECT_API_URL: f"{server.url}/api"}):
        ResultStore(url=f"sqlite:///{database}").save("results", overwrite=True)
        ObjectStoreCredentials(secret_access_key=SECRET).save("objects", overwrite=True)
    output = tmp_path / "out"

    run_id = start(
        server,
        {
            "input": str(requests),
            "output": str(output),
            "engine": {"name": "simulated"},
            "store": "block:results",
            "objects": "block:objects",
        },
    )
    run = server.wait_for(run_id, RUN_SECONDS)

    assert run["state_type"] == "COMPLETED", server.log("worker")[-5000:]
    rows = [json.loads(line) for line in (output / "output.jsonl").read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"row-{n}" for n in range(50)]
    assert (output / "report.html").stat().st_size > 10_000
    until(lambda: not processes(server), 15)

    tasks = of_run(server, "task runs", run_id)
    names = {task["name"]: task["state_name"] for task in tasks}
    assert {"open job", "ingest", "start replicas", SHARD, "finalise"} <= set(names)
    assert set(names.values()) == {"Completed"}

    artifacts = {item["key"]: item for item in of_run(server, "artifacts", run_id)}
    assert float(artifacts["batch-progress"]["data"]) == 100.0
    assert "Every one of the 50 rows has an answer" in artifacts["batch-report"]["data"]
    assert "report.html" in artifacts["batch-report-html"]["data"]

    messages = [line["message"] for line in of_run(server, "logs", run_id)]
    assert any("50 of 50 rows" in message for message in messages)
    assert any(message.startswith("shard 0: 50 rows") for message in messages)  # from Ray's worker process
    said = "[replica-0] dray.engine"
    assert any(message.startswith(said) for message in messages)  # from the replica's actor

    blocks = server.post("/block_documents/filter")
    seen = [run, tasks, artifacts, messages, events(server), blocks, server.log("worker")]
    shown = [json.dumps(item) for item in seen]
    assert run_id in shown[4]  # the events of this run are there to be looked through
    assert not [n for n, text in enumerate(shown) if CANARY in text or SECRET in text]


def test_a_cancel_in_the_ui_keeps_what_is_finished(server: PrefectServer, tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", 400)
    output = tmp_path / "out"
    slow = {"name": "simulated", "arguments": {"seconds_per_token": 0.2, "max_num_seqs": 16}}
    parameters = {"input": str(requests), "output": str(output), "job_id": "job"}
    run_id = start(server, parameters | {"engine": slow})
    until(lambda: committed(output) >= 16, RUN_SECONDS)

    run = cancel(server, run_id)

    assert (run["state_type"], run["state_name"]) == ("CANCELLED", "Cancelled")
    assert not {"Crashed", "Failed"} & set(states(server, run_id))
    shards = {t["name"]: t["state_name"] for t in of_run(server, "task runs", run_id) if t["name"] == SHARD}
    assert shards == {SHARD: "Stopped"}
    messages = [line["message"] for line in of_run(server, "logs", run_id)]
    assert not [message for message in messages if "exited with status code" in message]
    kept = committed(output)
    assert 16 <= kept < 400
    with open_store(f"sqlite:///{output / 'dray.db'}", create=False) as store:
        assert store.get_job("job").state is JobState.CANCELLED

    again = start(server, parameters | {"engine": {"name": "simulated"}, "resume": True})
    assert server.wait_for(again, RUN_SECONDS)["state_type"] == "COMPLETED", server.log("worker")[-5000:]
    assert len((output / "output.jsonl").read_text().splitlines()) == 400
    with open_store(f"sqlite:///{output / 'dray.db'}", create=False) as store:
        counts = store.get_job("job").summary["result"]["counts"]
    assert counts == {"total": 400, "done": 400, "failed": 0, "skipped": kept}


def test_a_cancel_while_the_engines_start(server: PrefectServer, tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", 5)
    output = tmp_path / "out"
    slow = {"name": "simulated", "arguments": {"start_seconds": 300}}
    run_id = start(server, {"input": str(requests), "output": str(output), "job_id": "job", "engine": slow})
    until(lambda: any(process.name() == "ray::Replica" for process in processes(server)), RUN_SECONDS)

    run = cancel(server, run_id)

    assert (run["state_type"], run["state_name"]) == ("CANCELLED", "Cancelled")
    with open_store(f"sqlite:///{output / 'dray.db'}", create=False) as store:
        assert store.get_job("job").state is JobState.CANCELLED
