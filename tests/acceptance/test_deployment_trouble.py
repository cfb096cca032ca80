"""deployments/ in trouble: a job that pauses and is resumed, a Prefect server that comes and goes."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from dray.store import JobState, open_store
from tests.support.command import committed, write_requests
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

AWAY_SECONDS = 35.0
REFUSING = "CREATE TRIGGER refusing BEFORE INSERT ON shards BEGIN SELECT RAISE(ABORT, 'refused'); END"


def test_a_job_that_pauses_is_resumed_by_the_automation(server: PrefectServer, tmp_path: Path) -> None:
    """The shipped one, but for its ten minutes: Prefect takes ten seconds and no less."""
    text = (ROOT / "deployments" / "automations" / "resume.yaml").read_text()
    quick = tmp_path / "resume.yaml"
    quick.write_text(text.replace("within: 600", "within: 10").replace("a paused job", "one soon"))
    server.cli("automation", "create", "--from-file", str(quick))
    (made,) = (one for one in server.post("/automations/filter") if one["name"] == "dray: resume one soon")
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

    server.delete(f"/automations/{made['id']}")
    assert run["state_type"] == "COMPLETED", server.log("worker")[-5000:]
    assert run["state"]["message"] == "5 done, 0 failed"


def test_prefects_server_comes_and_goes(server: PrefectServer, tmp_path: Path) -> None:
    """Restarted three times, and away for so long that the job ends meanwhile."""
    requests = write_requests(tmp_path / "requests.jsonl", 480)
    output = tmp_path / "out"
    run_id = start(server, {"input": str(requests), "output": str(output), "job_id": "job", "engine": slow()})
    for rows in (16, 96):
        until(lambda rows=rows: committed(output) >= rows, RUN_SECONDS)  # type: ignore[misc]
        with server.away():
            pass
    until(lambda: committed(output) >= 176, RUN_SECONDS)
    with server.away():
        time.sleep(AWAY_SECONDS)
        until(lambda: committed(output) == 480, RUN_SECONDS)

    run = server.wait_for(run_id, RUN_SECONDS)
    assert run["state_type"] == "COMPLETED", server.log("worker")[-5000:]
    assert run["state"]["message"] == "480 done, 0 failed"
    assert len((output / "output.jsonl").read_text().splitlines()) == 480
    assert open_tasks(server, run_id) == []
    artifacts = {item["key"]: item for item in of_run(server, "artifacts", run_id)}
    assert set(artifacts) == {"job-progress", "job-report"}
    assert float(artifacts["job-progress"]["data"]) == 100.0
    assert not {"Crashed", "Failed"} & set(states(server, run_id))
    # The worker is there for the next one.
    until(lambda: not processes(server), 60)
