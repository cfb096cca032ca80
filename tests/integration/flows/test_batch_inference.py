"""The flow called from Python, as a library: no command line, no deployment."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State
from pydantic import SecretStr

from blocks import LocalRayCluster, ObjectStoreCredentials, ResultStore
from dray.errors import ConfigError, EngineStartError, InputError
from dray.job.ending.result import JobResult
from dray.store import open_store
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions
from tests.support.command import CANARY, ROOT, write_requests

pytestmark = pytest.mark.integration

SIMULATED = EngineOptions(name="simulated")
ROWS = 50
MODEL = ROOT / "examples/tickets/model"


def last_run() -> FlowRun:
    with get_client(sync_client=True) as client:
        return max(client.read_flow_runs(), key=created)


def created(run: FlowRun) -> datetime:
    assert run.created is not None
    return run.created


def task_runs(run: FlowRun) -> list[str]:
    with get_client(sync_client=True) as client:
        chosen = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
        return [task.name for task in client.read_task_runs(flow_run_filter=chosen)]


def state_of(run: FlowRun, task: str) -> State:
    """The state of a task run, once it has ended: Prefect's server hears of it by events."""
    deadline = time.monotonic() + 15
    with get_client(sync_client=True) as client:
        chosen = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
        while True:
            states = [t.state for t in client.read_task_runs(flow_run_filter=chosen) if t.name == task]
            if states and states[0] is not None and states[0].is_final():
                return states[0]
            assert time.monotonic() < deadline, states
            time.sleep(0.2)


def answers(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "output.jsonl").read_text().splitlines()]


@pytest.mark.heavy(one_of=3)
def test_a_job_with_blocks_and_the_same_job_again(tmp_path: Path) -> None:
    """Store, cluster and object-store credentials come from blocks; the second call has nothing to do."""
    database = tmp_path / "elsewhere.db"
    ResultStore(url=SecretStr(f"sqlite:///{database}")).save("test-store", overwrite=True)
    LocalRayCluster(num_cpus=2, num_gpus=0).save("test-cluster", overwrite=True)
    credentials = ObjectStoreCredentials(region="nowhere-1", secret_access_key=SecretStr(CANARY))
    credentials.save("test-objects", overwrite=True)
    requests = write_requests(tmp_path / "requests.jsonl", ROWS)
    parameters: dict[str, Any] = {
        "input": str(requests),
        "model": "any",
        "output": str(tmp_path / "out"),
        "engine": SIMULATED,
        "store": "block:test-store",
        "cluster": "block:test-cluster",
        "objects": "block:test-objects",
    }

    first = batch_inference(**parameters)

    assert isinstance(first, JobResult)
    assert first.state == "completed"
    assert first.counts == {"total": ROWS, "done": ROWS, "failed": 0, "skipped": 0}
    assert [row["custom_id"] for row in answers(tmp_path / "out")] == [f"row-{n}" for n in range(ROWS)]
    assert not (tmp_path / "out" / "dray.db").exists()
    with open_store(f"sqlite:///{database}", create=False) as store:
        assert store.counts(first.job_id).done == ROWS
    run = last_run()
    assert CANARY not in json.dumps(run.parameters)
    assert run.name.endswith("requests.jsonl on any"), run.name
    # The shard ran in one of Ray's processes: its run is known because that process found this very server.
    assert "shard 0" in task_runs(run)

    before = (tmp_path / "out" / "output.jsonl").read_bytes()
    second = batch_inference(**parameters)

    assert isinstance(second, JobResult)
    assert second.job_id == first.job_id
    assert second.counts == {"total": ROWS, "done": ROWS, "failed": 0, "skipped": ROWS}
    assert (tmp_path / "out" / "output.jsonl").read_bytes() == before
    assert not [name for name in task_runs(last_run()) if name.startswith("shard")]


def test_a_refused_input_fails_before_any_engine_starts(tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", 3)
    with requests.open("a") as file:
        file.write(
            '{"custom_id": "row-1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\nnot JSON\n'
        )

    with pytest.raises(InputError) as refused:
        batch_inference(input=str(requests), model="any", output=str(tmp_path / "out"), engine=SIMULATED)

    assert {problem.line for problem in refused.value.problems} >= {4, 5}
    run = last_run()
    assert run.state is not None
    assert run.state.is_failed()
    for told in (str(refused.value), run.state.message, state_of(run, "ingest").message):
        assert "rows.skip_invalid makes error rows" in str(told)  # of the form that Prefect shows
    assert not {"start replicas", "shard 0"} & set(task_runs(run))
    assert not (tmp_path / "out" / "output.jsonl").exists()


@pytest.mark.parametrize("nested", [False, True])
def test_words_stand_for_the_day_of_the_run_and_of_a_subflow(tmp_path: Path, nested: bool) -> None:
    def call() -> None:
        batch_inference(input=str(tmp_path / "{date}.jsonl"), model="any", output="out", engine=SIMULATED)

    with pytest.raises(InputError) as refused:
        flow(name="parent")(call)() if nested else call()

    run = last_run()
    assert run.expected_start_time is not None
    file = run.expected_start_time.strftime("%Y-%m-%d.jsonl")
    assert file in str(refused.value)
    assert run.name.endswith(f"/{file} on any")


@pytest.mark.heavy
def test_an_engine_that_cannot_start_ends_the_tasks_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.driver.replicas.readiness.START_SECONDS", 10.0)  # the shard begins to wait
    requests = write_requests(tmp_path / "requests.jsonl", 3)
    slow = EngineOptions(name="simulated", arguments={"start_seconds": 120})
    began = time.monotonic()

    with pytest.raises(EngineStartError, match="none of 1 replicas is ready after 10 s"):
        batch_inference(input=str(requests), model="any", output=str(tmp_path / "out"), engine=slow)

    assert time.monotonic() - began < 60
    assert state_of(last_run(), "start replicas").is_failed()
    assert state_of(last_run(), "shard 0").name == "Stopped"


def test_an_engine_that_refuses_its_arguments_says_so(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    requests = write_requests(tmp_path / "requests.jsonl", 3)
    options = EngineOptions(arguments={"nonsense": 1})

    with pytest.raises(ConfigError, match="has no engine argument nonsense"):
        batch_inference(input=str(requests), model=str(MODEL), output=str(tmp_path / "out"), engine=options)

    assert "nonsense" in str(last_run().state.message)  # type: ignore[union-attr]
    assert task_runs(last_run()) == []  # judged before anything starts


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"store": "block:no-such"}, "dray-result-store"),
        ({"cluster": "block:no-such"}, "dray-local-ray-cluster .* block:SLUG/no-such"),
        ({"store": "block:dray-result-store/no-such"}, "dray-result-store block named 'no-such'"),
        ({"cluster": "block:dray-existing-ray-cluster/no-such"}, "dray-existing-ray-cluster"),
        ({"objects": "block:no-such"}, "dray-object-store-credentials"),
        ({"store": "env:DRAY_TESTS_NO_SUCH"}, "DRAY_TESTS_NO_SUCH"),
    ],
)
def test_a_block_or_variable_that_is_not_there_is_named(
    tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", 1)
    with pytest.raises(ConfigError, match=named):
        batch_inference(
            input=str(requests), model="any", output=str(tmp_path / "out"), engine=SIMULATED, **options
        )
