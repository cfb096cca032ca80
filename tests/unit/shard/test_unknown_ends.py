"""An attempt that ends by a fault in dray says where that is, in the store as well."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from dray.errors import noted_at
from dray.shard import task
from dray.shard.backoff import Backoff
from dray.shard.work import ShardWork
from tests.support.thread_executor import ThreadExecutor
from tests.support.thread_fleet import ThreadReplica
from tests.unit.failures.scene import JOB, Scene

pytestmark = pytest.mark.unit


def _fault(*_: object, **__: object) -> None:
    raise TypeError("a prompt")


def test_the_reason_names_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadReplica, "feed", _fault)
    with closing(Scene(tmp_path, 4)) as scene:
        told = scene.attempt()
        [kept] = [attempt.detail for attempt in scene.store.attempts(JOB)]
    assert kept == told
    assert re.fullmatch(
        r"UNKNOWN: nothing that dray knows \(TypeError at \w+\.py:\d+, raised in test_unknown_ends\.py:\d+\)",
        told,
    )


def test_so_does_a_shard_task_whose_attempt_could_not_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error leaves the process with a note, as Ray and Prefect pickle it."""
    monkeypatch.setattr(task, "attempt", _fault)
    with closing(Scene(tmp_path, 4)) as scene:
        with pytest.raises(TypeError) as failed:
            scene.task(Backoff())()
        executor = ThreadExecutor(scene.fleet)
        executor.submit(ShardWork(job=scene.job, shard=scene.shard, store_url=scene.url))
        [end] = executor.poll(60)
    assert re.fullmatch(r" at task\.py:\d+, raised in test_unknown_ends\.py:\d+", noted_at(failed.value))
    assert re.fullmatch(r"shard 0 failed: TypeError at task\.py:\d+, raised in \S+:\d+", str(end.error))
