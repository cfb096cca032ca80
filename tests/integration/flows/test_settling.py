"""Prefect knows how each task of a run ended, though it heard of none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import ray
from prefect import flow, runtime, task, task_engine
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_TASKS_DEFAULT_RETRIES, temporary_settings
from prefect.states import AwaitingRetry

from dray.driver import ray_executor
from dray.errors import ConfigError
from dray.shard.work import ShardWork
from dray.store import open_store
from tasks import prefect_executor, settling
from tasks.events import tell_of_job
from tasks.flushing import flush_prefect
from tests.support.command import ROOT
from tests.support.stores import ready_job
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@settling.step("works")
def works(number: int) -> int:
    """Add one."""
    return number + 1


@settling.step("fails")
def fails() -> None:
    raise ConfigError("no such model")


@task(name="unknown", task_run_name="unknown", persist_result=False)
def unknown() -> None:
    """Its end is noted nowhere, as that of a run whose process died."""


@flow
def ends() -> UUID:
    assert works(1) == 2
    with pytest.raises(ConfigError, match="no such model"):
        fails()
    unknown()
    run = UUID(runtime.flow_run.id)
    until(lambda: len(task_runs(run)) == 3, 60)  # a busy server hears late that they began
    settling.settle_tasks(seconds=1.0)
    return run


def test_an_end_that_prefect_did_not_hear_of_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_ends(monkeypatch)
    run = ends()

    assert {one.name: one.state and one.state.name for one in task_runs(run)} == {
        "works": "Completed",
        "fails": "Failed",
        "unknown": "Ended",
    }


def lose_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = task_engine.emit_task_run_state_change_event  # type: ignore[attr-defined]  # an import of it

    def emit_others(*, validated_state: State, **given: Any) -> Any:
        return None if validated_state.is_final() else emit(validated_state=validated_state, **given)

    monkeypatch.setattr(task_engine, "emit_task_run_state_change_event", emit_others)


def test_a_process_that_leaves_late_settles_no_task_of_the_one_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A suspended run was resumed on another worker while its first process still gave its cluster back."""
    lose_ends(monkeypatch)
    tries: list[FlowRunContext | None] = []
    seen: list[list[str]] = []

    @flow
    def resumed() -> None:
        run = UUID(runtime.flow_run.id)
        tries.append(FlowRunContext.get())
        unknown()
        until(lambda: len(task_runs(run)) == len(tries), 60)
        if len(tries) == 2:
            for one in tries:
                with monkeypatch.context() as patch:
                    patch.setattr(settling, "FlowRunContext", SimpleNamespace(get=lambda one=one: one))
                    settling.settle_tasks(1.0)
                seen.append(sorted(str(one.state and one.state.name) for one in task_runs(run)))

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(resumed)
        for _ in range(2):
            run_flow(resumed, flow_run=client.read_flow_run(run.id))
            client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    assert seen == [["Ended", "Running"], ["Ended", "Ended"]]


def test_a_step_is_tried_once_whatever_the_settings_say() -> None:
    tries = []
    with temporary_settings({PREFECT_TASKS_DEFAULT_RETRIES: 2}):

        @settling.step("fails once")
        def fails_once() -> None:
            tries.append(1)
            raise ConfigError("no such model")

        @flow
        def once() -> None:
            with pytest.raises(ConfigError, match="no such model"):
                fails_once()

        once()
    assert len(tries) == 1


REFUSED = """
from flows.batch_inference import batch_inference
from flows.plan import plan

print(batch_inference.retries, plan.retries, batch_inference.with_options(retries=2).retries)
batch_inference("none.jsonl", "m", "out", engine={"name": "simulated"})
"""


def test_so_is_a_whole_job(tmp_path: Path) -> None:
    """By a team's setting, a job that failed rented its cluster again at once; a refusal came three times."""
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        env=os.environ | {"PREFECT_FLOWS_DEFAULT_RETRIES": "2", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "none.jsonl: no such file" in done.stderr
    assert done.stderr.count("Task run 'open job' - Finished in state Failed") == 1
    assert done.stdout.splitlines() == ["0 0 2"]


def test_what_is_sent_at_the_end_of_a_run_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    @flow
    def telling() -> None:
        for number in range(100):
            tell_of_job("job", "market", {"on_demand": number, "reason": "a test"})
        flush_prefect()

    telling()
    assert "Still processing items" not in caplog.text


@flow
def ends_amid(work: ShardWork) -> UUID:
    """The job's run ends while a shard task waits for a replica."""
    run = UUID(runtime.flow_run.id)
    executor = prefect_executor.PrefectExecutor()
    executor.start("dray_stable")
    executor.submit(work)
    deadline = time.monotonic() + 120
    while not any(one.state and one.state.is_running() for one in task_runs(run)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    executor.close()
    settling.settle_tasks()
    return run


@pytest.mark.heavy
def test_a_task_that_ended_with_the_job_is_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        lease = ready_job(store)
        work = ShardWork(job=lease, shard=store.shards("job")[0], store_url=str(tmp_path / "store.db"))
    monkeypatch.setattr(ray_executor, "END_SECONDS", 1.0)
    monkeypatch.setattr(settling, "_SECONDS", 1.0)
    monkeypatch.setattr(
        ray, "cancel", lambda *_, **__: None
    )  # its process does not hear of it, and says nothing
    ray.init(address="local", num_cpus=1, resources={"dray_stable": 1}, include_dashboard=False)
    try:
        run = ends_amid(work)
    finally:
        ray.shutdown()

    [shard] = [one.state for one in task_runs(run) if one.name.startswith("shard ")]
    assert shard is not None
    assert (shard.name, shard.message) == ("Crashed", "it was ended with the job's run")


def task_runs(run: UUID) -> list[TaskRun]:
    with get_client(sync_client=True) as client:
        return client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run])))
