"""deployments/ as its users run it: a server, a worker, runs started, stopped and resumed as the UI does."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import SecretStr

from blocks import ObjectStoreCredentials, ResultStore
from dray.store import Job, JobState, open_store
from tests.support.command import CANARY, committed, write_requests
from tests.support.deployment import (
    RUN_SECONDS,
    of_run,
    open_tasks,
    processes,
    slow,
    start,
    states,
)
from tests.support.prefect_server import ROOT, PrefectServer
from tests.support.waiting import until

pytestmark = pytest.mark.acceptance

SECRET = "canary-51c8-secret"
CANCEL_SECONDS = 30.0  # Prefect's worker kills what has not ended by then
SHARD = "shard 0"
REFUSING = "CREATE TRIGGER refusing BEFORE INSERT ON shards BEGIN SELECT RAISE(ABORT, 'refused'); END"


def ask(server: PrefectServer, run_id: str, state: str, name: str, **details: Any) -> None:
    """What a button of the run's page does."""
    body = {"state": {"type": state, "name": name, "state_details": details}}
    answer = server.post(f"/flow_runs/{run_id}/set_state", body)
    assert answer["status"] == "ACCEPT", answer


def job_of(output: Path) -> Job:
    with open_store(f"sqlite:///{output / 'dray.db'}", create=False) as store:
        return store.get_job("job")


def cancel(server: PrefectServer, run_id: str) -> dict[str, Any]:
    """Cancel as the UI does; gives the run once it has ended and nothing of it is left."""
    running = processes(server)
    assert any("raylet" in process.name() for process in running)
    began = time.monotonic()
    ask(server, run_id, "CANCELLING", "Cancelling")
    run = server.wait_for(run_id, CANCEL_SECONDS)
    left = CANCEL_SECONDS - (time.monotonic() - began)
    until(lambda: not any(process.is_running() for process in [*running, *processes(server)]), left)
    return run


def suspend(server: PrefectServer, run_id: str) -> None:
    """Suspend as the UI does; returns once nothing of the run is left."""
    ask(server, run_id, "PAUSED", "Suspended", pause_reschedule=True)
    until(lambda: not processes(server), CANCEL_SECONDS)
    assert server.get(f"/flow_runs/{run_id}")["state_name"] == "Suspended"


def quick_automation(server: PrefectServer, folder: Path, file: str) -> str:
    """The id of a shipped automation, but for its ten minutes: Prefect takes ten seconds and no less."""
    content = yaml.safe_load((ROOT / "deployments" / "automations" / file).read_text())
    content["name"] = f"quick {content['name']}"
    content["trigger"]["within"] = 10
    quick = folder / file
    quick.write_text(yaml.safe_dump(content))
    server.cli("automation", "create", "--from-file", str(quick))
    (made,) = (one["id"] for one in server.post("/automations/filter") if one["name"] == content["name"])
    return str(made)


def events(server: PrefectServer) -> list[dict[str, Any]]:
    page = server.post("/events/filter", {"limit": 50})
    found = list(page["events"])
    while page["next_page"]:
        page = server.get(page["next_page"].removeprefix(f"{server.url}/api"))
        found += page["events"]
    return found


def of_job(server: PrefectServer, job: str) -> dict[str, dict[str, Any]]:
    """The last event of each kind about a job, as far as they are stored."""
    about = [one for one in events(server) if one["resource"]["prefect.resource.id"] == f"dray.job.{job}"]
    return {event["event"]: event for event in about}


def errors_in_log(server: PrefectServer, run_id: str) -> list[str]:
    return [line["message"] for line in of_run(server, "logs", run_id) if line["level"] >= 40]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["tickets", "tickets-csv"])
def test_the_deployments_are_as_the_file_says(server: PrefectServer, name: str) -> None:
    deployment = server.get(f"/deployments/name/batch-inference/{name}")
    assert deployment["entrypoint"] == "flows.batch_inference.batch_inference"
    assert deployment["work_pool_name"] == "dray"
    assert deployment["global_concurrency_limit"] is None
    assert deployment["enforce_parameter_schema"]
    (schedule,) = deployment["schedules"]
    assert (schedule["slug"], schedule["active"]) == ("nightly", False)
    (step,) = deployment["pull_steps"]
    (place,) = step.values()
    assert Path(place["directory"]) == ROOT
    # A run is refused at once, not on the worker, when the form's values do not fit.
    with pytest.raises(AssertionError, match=r"409|422"):
        start(server, {"engine": {"name": "no-such-engine"}}, name)


@pytest.mark.heavy
def test_a_deploy_sets_the_schedule_as_the_file_says_over_the_switch_in_the_ui(
    server: PrefectServer, tmp_path: Path
) -> None:
    """A team turned the nights on in the UI. The next deploy turned them off, without a word."""

    def deploy(file: Path) -> bool:
        server.cli("deploy", "--all", "--prefect-file", str(file))
        schedule = server.get("/deployments/name/batch-inference/tickets")["schedules"][0]
        return bool(schedule["active"])

    shipped = ROOT / "deployments" / "prefect.yaml"
    deployment = server.get("/deployments/name/batch-inference/tickets")
    server.patch(
        f"/deployments/{deployment['id']}/schedules/{deployment['schedules'][0]['id']}", {"active": True}
    )
    assert not deploy(shipped)
    turned_on = tmp_path / "prefect.yaml"
    turned_on.write_text(shipped.read_text().replace("active: false", "active: true", 1))
    assert [deploy(turned_on), deploy(turned_on)] == [True, True]
    csv = server.get("/deployments/name/batch-inference/tickets-csv")["schedules"]
    assert [one["active"] for one in csv] == [False]
    assert not deploy(shipped)


class Notified:
    """What a webhook was sent."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def notified(server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notified]:
    """Both automations of deployments/automations, the second with a webhook's block."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    webhook = Notified()
    with temporary_settings({PREFECT_API_URL: f"{server.url}/api"}):
        block = CustomWebhookNotificationBlock(
            name="webhook",
            url=webhook.url,
            json_data={"subject": "{{subject}}", "body": "{{body}}"},
            headers=None,  # their defaults, which mypy cannot see
            cookies=None,
        )
        document = block.save("webhook", overwrite=True)
    text = (ROOT / "deployments" / "automations" / "notify.yaml").read_text()
    filled = tmp_path_factory.mktemp("automations") / "notify.yaml"
    filled.write_text(re.sub(r"00000000-0000-0000-0000-000000000000", str(document), text))
    server.cli("automation", "create", "--from-file", "deployments/automations/resume.yaml")
    server.cli("automation", "create", "--from-file", str(filled))
    yield webhook
    webhook.close()


@pytest.mark.heavy(one_of=3)
def test_a_run_started_as_the_ui_does(server: PrefectServer, notified: Notified, tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", 50, words={3: "bad", 30: "bad"})
    database = tmp_path / f"{SECRET}.db"
    with temporary_settings({PREFECT_API_URL: f"{server.url}/api"}):
        ResultStore(url=SecretStr(f"sqlite:///{database}")).save("results", overwrite=True)
        ObjectStoreCredentials(secret_access_key=SecretStr(SECRET)).save("objects", overwrite=True)
    output = tmp_path / "out"

    run_id = start(
        server,
        {
            "input": str(requests),
            "output": str(output),
            "job_id": "Job_1",
            "engine": {"name": "simulated", "arguments": {"error_on": "bad"}},
            "store": "block:results",
            "objects": "block:objects",
        },
    )
    run = server.wait_for(run_id, RUN_SECONDS)

    assert run["state_type"] == "COMPLETED", server.log("worker")[-5000:]
    assert run["state"]["message"] == "48 done, 2 failed"
    rows = [json.loads(line) for line in (output / "output.jsonl").read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"row-{n}" for n in range(50) if n not in (3, 30)]
    assert (output / "report.html").stat().st_size > 10_000
    until(lambda: not processes(server), 60)

    tasks = of_run(server, "task runs", run_id)
    names = {task["name"]: task["state_name"] for task in tasks}
    assert {"open job", "ingest", "start replicas", SHARD, "finalise"} <= set(names)
    assert set(names.values()) == {"Completed"}

    artifacts = {item["key"]: item for item in of_run(server, "artifacts", run_id)}
    progress, report = sorted(artifacts)
    assert re.fullmatch(r"job-1-[0-9a-f]{8}-progress", progress)
    assert float(artifacts[progress]["data"]) == 100.0
    assert report == progress.replace("progress", "report")
    assert f"HTML report: `{output / 'report.html'}`" in artifacts[report]["data"]

    messages = [line["message"] for line in of_run(server, "logs", run_id)]
    assert any("50 of 50 rows" in message for message in messages)
    assert any(message.startswith("shard 0: 50 rows") for message in messages)  # from Ray's worker process
    said = "[replica-0] simulated engine ready"
    assert any(message.startswith(said) for message in messages)  # from the replica's actor

    until(lambda: any("dray.job.error-share" in body for body in notified.bodies), 30)
    # Prefect's server stores events in batches, after its automations have seen them.
    wanted = {"dray.job.started", "dray.job.error-share", "dray.job.completed"}
    until(lambda: wanted <= of_job(server, "Job_1").keys(), 30)
    found = events(server)
    ours = of_job(server, "Job_1")
    assert set(ours) == wanted
    assert ours["dray.job.error-share"]["payload"]["failed"] == 2
    assert ours["dray.job.completed"]["payload"]["done"] == 48
    for event in ours.values():
        related = {one["prefect.resource.role"]: one["prefect.resource.id"] for one in event["related"]}
        assert related["flow-run"] == f"prefect.flow-run.{run_id}"
        assert "deployment" in related

    blocks = server.post("/block_documents/filter")
    seen = [run, tasks, artifacts, messages, found, blocks, notified.bodies, server.log("worker")]
    shown = [json.dumps(item) for item in seen]
    assert run_id in shown[4]  # the events of this run are there to be looked through
    assert not [n for n, text in enumerate(shown) if CANARY in text or SECRET in text]


@pytest.mark.heavy
def test_suspend_resume_cancel_and_retry_do_what_they_say(server: PrefectServer, tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", 240)
    output = tmp_path / "out"
    given = {"input": str(requests), "output": str(output), "job_id": "job", "engine": slow()}
    run_id = start(server, given)
    until(lambda: committed(output) >= 16, RUN_SECONDS)

    suspend(server, run_id)
    kept = committed(output)
    assert 16 <= kept < 240
    job = job_of(output)
    assert (job.state, job.driver) == (JobState.PAUSED, None)
    assert job.reason == "suspended in Prefect"

    server.post(f"/flow_runs/{run_id}/resume")
    until(lambda: committed(output) >= kept + 16, RUN_SECONDS)
    run = cancel(server, run_id)
    assert (run["state_type"], run["state_name"]) == ("CANCELLED", "Cancelled")
    shards = {t["name"]: t["state_name"] for t in of_run(server, "task runs", run_id) if t["name"] == SHARD}
    assert set(shards.values()) <= {"Completed", "Stopped"}
    more = committed(output)
    assert kept < more < 240
    assert job_of(output).state is JobState.CANCELLED

    ask(server, run_id, "SCHEDULED", "AwaitingRetry")
    until(lambda: committed(output) >= more + 16, RUN_SECONDS)
    suspend(server, run_id)
    more = committed(output)
    assert more < 240
    server.post(f"/flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    assert server.get(f"/flow_runs/{run_id}")["state_name"] == "Cancelled"  # no process is there to hear it
    run = server.wait_for(start(server, given), RUN_SECONDS)  # as a schedule starts it
    assert (run["state_type"], run["state_name"]) == ("CANCELLED", "Cancelled"), server.log("worker")[-5000:]
    assert "while its run waited" in run["state"]["message"]
    assert (job_of(output).state, committed(output)) == (JobState.CANCELLED, more)

    ask(server, run_id, "SCHEDULED", "AwaitingRetry")
    run = server.wait_for(run_id, RUN_SECONDS)
    assert run["state_type"] == "COMPLETED", server.log("worker")[-5000:]
    assert run["state"]["message"] == f"240 done, 0 failed ({more:,} were finished before)"
    assert len((output / "output.jsonl").read_text().splitlines()) == 240
    assert job_of(output).summary["result"]["counts"] == {
        "total": 240, "done": 240, "failed": 0, "skipped": more,
    }  # fmt: skip
    assert not {"Crashed", "Failed"} & set(states(server, run_id))
    assert errors_in_log(server, run_id) == []
    until(lambda: not open_tasks(server, run_id), 10)


@pytest.mark.heavy
def test_dray_cancel_leaves_no_error_behind(server: PrefectServer, tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", 5)
    output = tmp_path / "out"
    starting = {"name": "simulated", "arguments": {"start_seconds": 300}}
    run_id = start(
        server, {"input": str(requests), "output": str(output), "job_id": "job", "engine": starting}
    )
    until(lambda: any(process.name() == "ray::Replica" for process in processes(server)), RUN_SECONDS)

    with open_store(f"sqlite:///{output / 'dray.db'}", create=False) as store:
        store.request_cancel("job")
    run = server.wait_for(run_id, 2 * CANCEL_SECONDS)  # the worker has no part in it, and kills nothing

    assert (run["state_type"], run["state_name"]) == ("CANCELLED", "Cancelled")
    assert (
        run["state"]["message"]
        == "0 done, 0 failed of 5, all kept; `dray resume JOB` or a retry goes on, `dray export` writes them"
    )
    until(lambda: not processes(server), CANCEL_SECONDS)
    assert errors_in_log(server, run_id) == []
    assert job_of(output).state is JobState.CANCELLED


@pytest.mark.heavy
def test_a_schedule_fires_and_its_run_has_a_folder_of_its_own(server: PrefectServer, tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text("id,text\na,hello\nb,good day\n")
    deployment = server.get("/deployments/name/batch-inference/tickets-csv")
    path = f"/deployments/{deployment['id']}"
    parameters = {"input": str(table), "output": str(tmp_path / "{time}"), "engine": {"name": "simulated"}}
    schedule = {"schedule": {"interval": 15}, "active": True, "parameters": parameters}
    (made,) = server.post(f"{path}/schedules", [schedule])
    ours = {"deployments": {"id": {"any_": [deployment["id"]]}}}
    runs: list[dict[str, Any]] = []

    def completed() -> bool:
        nonlocal runs
        runs = server.post("/flow_runs/filter", ours)
        return any(run["state_type"] == "COMPLETED" for run in runs)

    until(completed, RUN_SECONDS)
    server.delete(f"{path}/schedules/{made['id']}")
    assert all(run["auto_scheduled"] for run in runs)
    assert not any(run["state_type"] in ("FAILED", "CRASHED") for run in runs)
    for run in runs:
        if run["state_type"] == "COMPLETED":
            minute = datetime.fromisoformat(run["expected_start_time"]).strftime("%Y-%m-%dT%H-%M")
            assert len((tmp_path / minute / "output.jsonl").read_text().splitlines()) == 2


@pytest.mark.heavy
def test_a_job_that_pauses_is_resumed_by_the_automation(server: PrefectServer, tmp_path: Path) -> None:
    made = quick_automation(server, tmp_path, "resume.yaml")
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    open_store(url).close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as database:
        database.execute(REFUSING)
    requests = write_requests(tmp_path / "requests.jsonl", 5)
    parameters = {"input": str(requests), "output": str(tmp_path / "out"), "job_id": "job", "store": url}
    run_id = start(server, parameters | {"engine": {"name": "simulated"}})

    assert server.wait_for(run_id, RUN_SECONDS)["state_type"] == "FAILED", server.log("worker")[-5000:]
    with open_store(url, create=False) as store:
        assert store.get_job("job").state is JobState.PAUSED
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as database:
        database.execute("DROP TRIGGER refusing")
    until(lambda: "AutomaticRetry" in states(server, run_id), RUN_SECONDS)
    run = server.wait_for(run_id, RUN_SECONDS)

    server.delete(f"/automations/{made}")
    assert run["state_type"] == "COMPLETED", server.log("worker")[-5000:]
    assert run["state"]["message"] == "5 done, 0 failed"


@pytest.mark.heavy
def test_a_run_whose_heartbeats_end_crashes_and_no_other(server: PrefectServer, tmp_path: Path) -> None:
    made = quick_automation(server, tmp_path, "crashed.yaml")
    flow_id = server.get("/deployments/name/batch-inference/tickets")["flow_id"]
    begun = {"flow_id": flow_id, "state": {"type": "RUNNING"}}
    gone, skipped, suspended = (server.post("/flow_runs/", begun)["id"] for _ in range(3))
    flow = {
        "prefect.resource.id": f"prefect.flow.{flow_id}",
        "prefect.resource.role": "flow",
        "prefect.resource.name": "batch-inference",
    }
    beat = {"event": "prefect.flow-run.heartbeat", "related": [flow], "payload": {}}
    runs = [gone, skipped, suspended]
    beats = [beat | {"resource": {"prefect.resource.id": f"prefect.flow-run.{run}"}} for run in runs]
    now = datetime.now(UTC).isoformat()
    server.post("/events", [one | {"occurred": now, "id": str(uuid4())} for one in beats])
    ask(server, skipped, "COMPLETED", "Skipped")
    ask(server, suspended, "PAUSED", "Suspended")

    until(lambda: server.get(f"/flow_runs/{gone}")["state_name"] == "Crashed", 60)
    time.sleep(5)
    assert [server.get(f"/flow_runs/{run}")["state_name"] for run in (skipped, suspended)] == [
        "Skipped",
        "Suspended",
    ]
    ask(server, gone, "COMPLETED", "Completed")  # it lived: Prefect's server had been away
    server.delete(f"/automations/{made}")
