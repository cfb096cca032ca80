"""A replica is killed, then a shard's own worker process: the job goes on, visibly, to the same bytes."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dray.engine.protocol import EngineSpec
from dray.engine.replica import Replica
from dray.job.beginning.opening import open_job
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.kinds import Kind
from dray.requests.sources import RowDefaults, source_of
from dray.shard.commit_outage import CommitOutage
from dray.shard.placing import Place
from dray.shard.pump import Fed, run_shard
from dray.shard.work import OpenWork
from dray.store import AttemptCause, open_store
from tests.support.command import Command, committed, prefect_api, run_arguments, write_requests

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(900)]

ROWS = 400
JOB = "deaths"


def test_the_job_goes_on(tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "in.jsonl", ROWS)
    expected = _answers_without_ray(requests, tmp_path / "plain")
    output, trace = tmp_path / "out", tmp_path / "trace"
    trace.mkdir()
    settings = ("seconds_per_token=0.1", "max_num_seqs=16")  # 20 rows/s
    command = Command(
        arguments=run_arguments(requests, output, job_id=JOB, settings=settings),
        folder=tmp_path / "log",
        environment={"DRAY_TRACE_DIR": str(trace)},
    )
    command.until(lambda: committed(output, JOB) > 0, what="the first commit")

    os.kill(_replica(trace), signal.SIGKILL)
    at_death = committed(output, JOB)
    command.until(lambda: committed(output, JOB) > at_death + 50, what="the replacement's first commits")

    [worker] = [pid for pid, title in command.note_processes().items() if "infer" in title]
    os.kill(worker, signal.SIGKILL)
    ended = command.wait(300)

    assert ended.code == 0, ended.stderr
    assert ended.json["counts"] == {"total": ROWS, "done": ROWS, "failed": 0, "skipped": 0}
    assert ended.json["retries"] == {"ENGINE_CRASH": 1, "NODE_LOSS": 1}
    assert (output / "output.jsonl").read_bytes() == expected
    assert "its worker process died; running it again" in ended.stderr
    with open_store(f"sqlite:///{output / 'dray.db'}", create=False) as store:
        assert store.verify_counts(JOB).done == ROWS
        causes = [attempt.cause for attempt in store.attempts(JOB)]
    # The driver may announce the dead replica once more: a place on it is given back, and costs nothing.
    assert [cause for cause in causes if cause != AttemptCause.NOT_THERE] == [
        "ENGINE_CRASH",
        "NODE_LOSS",
        "DONE",
    ]
    runs = _shard_runs()
    assert len(runs) == 2  # the second after the worker's death
    assert max(run["run_count"] for run in runs) == 2  # the first was retried after the replica's
    assert sorted(run["state_type"] for run in runs) == [
        "COMPLETED",
        "CRASHED",
    ]  # a dead process says nothing
    command.assert_nothing_left()


def _replica(trace: Path) -> int:
    """The pid of the replica that admitted a row last."""
    latest = max(trace.rglob("*.trace"), key=lambda file: file.stat().st_mtime)
    return int(latest.stem.rsplit("-", 1)[1])


def _shard_runs() -> list[dict[str, Any]]:
    """The shard tasks of the run as Prefect's server knows them, once it has heard of the last one's end."""
    wanted = {"flow_runs": {"name": {"like_": JOB}}, "task_runs": {"name": {"like_": "shard "}}}
    request = urllib.request.Request(
        f"{prefect_api()}/task_runs/filter",
        data=json.dumps(wanted).encode(),
        headers={"Content-Type": "application/json"},
    )
    deadline = time.monotonic() + 20
    while True:
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        if any(run["state_type"] == "COMPLETED" for run in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


class _One(NamedTuple):
    """A replica in this process, which all shards find."""

    replica: Replica

    def find(self, name: str) -> Replica:
        return self.replica


def _answers_without_ray(requests: Path, output: Path) -> bytes:
    """The same job in this process: store, replica and outputs, and neither Ray nor Prefect."""
    settings = JobSettings(
        source=source_of([str(requests)]),
        defaults=RowDefaults(),
        model="simulated",
        output=str(output),
        store_url=f"sqlite:///{output / 'dray.db'}",
        engine="simulated",
        job_id=JOB,
    )
    job = open_job(settings)
    spec = EngineSpec(name="simulated", model="simulated", kind=Kind.CHAT, model_name="m")
    replica = Replica("replica", spec, exit_when_dead=False)
    with open_store(settings.store_url, create=False) as store:
        for shard in ingest_job(job, replicas=1):
            lease = store.claim_shard(job.lease, shard.number, owner="test")
            assert lease is not None
            work = OpenWork(job=job.lease, shard=shard, store=store, replicas=_One(replica), owner="test")
            place = Place(client=replica, node=None, host="here", seqs=16, slots=2)
            run_shard(work, lease, place, Fed(), CommitOutage())
    replica.stop()
    finalise_job(job, Timeline())
    return (output / "output.jsonl").read_bytes()
