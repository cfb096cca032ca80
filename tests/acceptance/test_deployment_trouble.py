"""deployments/ in trouble: a Prefect server that comes and goes, and one that takes no more parameters."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from dray.errors import ConfigError
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions
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
from tests.support.prefect_server import PrefectServer
from tests.support.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.heavy]

AWAY_SECONDS = 35.0


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


def test_a_server_of_the_users_own_refuses_long_parameters_in_few_words(
    server: PrefectServer, tmp_path: Path
) -> None:
    """Prefect's error held them twice, with the prompt in them: megabytes in the log of the caller's run."""
    files = [str(tmp_path / f"part-{number:05}-{'c' * 80}.parquet") for number in range(5_300)]
    with (
        temporary_settings({PREFECT_API_URL: f"{server.url}/api"}),
        pytest.raises(ConfigError, match=r"at most 524,288 bytes.*a pattern in quotes") as refused,
    ):
        batch_inference(files, "m", str(tmp_path / "out"), engine=EngineOptions(name="simulated"))
    assert len(str(refused.value)) < 500
    assert refused.value.__context__ is None
