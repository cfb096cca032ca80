"""A shard task that is the first of its worker process, while Prefect's server is away."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import ray
from prefect import flow, tags
from prefect.settings import PREFECT_API_URL, temporary_settings

from dray.driver.executor import TaskEnd
from dray.ports import lasting_port
from dray.shard.task import Ended
from dray.shard.work import ShardWork
from dray.store import open_store
from tasks.prefect_executor import PrefectExecutor
from tasks.prefect_run import in_own_run
from tests.support.stores import claimed, ready_job

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(180)]

STABLE = "dray_stable"


@pytest.fixture
def work(tmp_path: Path) -> ShardWork:
    """Of a shard that another attempt holds: its task ends at once, if it starts."""
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        lease = ready_job(store)
        claimed(store, lease)
        return ShardWork(job=lease, shard=store.shards("job")[0], store_url=url)


@flow
def one_task(work: ShardWork) -> TaskEnd:
    """The end of one task, whose settings name a server that does not answer, in a run below ``tags``."""
    executor = PrefectExecutor()
    away = temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{lasting_port()}/api"})
    with tags("nightly"), in_own_run(), away:
        executor.start(STABLE)
    try:
        executor.submit(work)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for end in executor.poll(1.0):
                return end
    finally:
        executor.close()
    raise AssertionError("the task did not end")


def test_the_first_task_of_a_process_starts_though_no_server_answers(work: ShardWork) -> None:
    ray.init(address="local", num_cpus=1, resources={STABLE: 1}, include_dashboard=False)
    try:
        end = one_task(work)
    finally:
        ray.shutdown()
    assert not end.crashed
    assert end.result is not None
    assert end.result.how is Ended.HELD
