"""A whole job without Prefect, on replicas in threads. SQLite takes writers from one machine."""

from __future__ import annotations

import errno
import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cluster import ClusterInfo, ClusterSettings, Node
from dray.cluster.capacity import Capacity, Room
from dray.driver.events import (
    Event,
    Observer,
    Progressed,
    ReplicaLost,
    ReplicaReady,
    ShardFinished,
    StopHeard,
    Told,
    Warned,
)
from dray.driver.resting import put_to_rest
from dray.driver.whole_job import run_job
from dray.errors import (
    ConfigError,
    EngineStartError,
    JobBlockedError,
    JobChangedError,
    JobFailedError,
    JobPausedError,
)
from dray.job.beginning.opening import open_job
from dray.job.beginning.weighing import Weighing
from dray.job.ending.result import JobResult
from dray.job.options.settings import JobSettings
from dray.job.options.shared_store import refuse_shared_sqlite
from dray.job.spent_budget import has_spent_budget
from dray.shard.backoff import NO_WAIT_VARIABLE
from dray.store import JobState, open_store
from tests.support.lanes import parts_on
from tests.support.publishing import answer
from tests.support.thread_fleet import Script, ThreadCluster, ThreadFleet
from tests.unit.driver.scripted import Heard, cluster

pytestmark = pytest.mark.unit

LOST_ONCE = Script(lose=lambda replica, batch: (replica, batch) == (0, 0))


def _cluster(*stable: str, spot: str = "spot") -> ClusterInfo:
    hosts = [(host, True) for host in stable] + [(spot, False)]
    return cluster(
        *(
            Node(node_id=str(number), host=host, cpus=1, gpus=0, stable=is_stable)
            for number, (host, is_stable) in enumerate(hosts)
        )
    )


@pytest.mark.parametrize("url", ["sqlite:////data/dray.db", "/data/dray.db", "jobs.sqlite3"])
def test_sqlite_with_stable_nodes_on_several_machines_is_refused(url: str) -> None:
    here = socket.gethostname()
    with pytest.raises(ConfigError, match=r"2 machines \(.*elsewhere.*\); use PostgreSQL"):
        refuse_shared_sqlite(url, _cluster(here, "elsewhere").stable_hosts)
    with pytest.raises(ConfigError, match="2 machines"):
        refuse_shared_sqlite(url, _cluster("elsewhere").stable_hosts)  # the driver itself writes too
    refuse_shared_sqlite(url, _cluster(here, here).stable_hosts)  # two nodes, one machine
    refuse_shared_sqlite(url, _cluster(here).stable_hosts)


def test_postgresql_may_have_several() -> None:
    refuse_shared_sqlite("postgresql://host/dray", _cluster("a", "b").stable_hosts)


def _run(settings: JobSettings, observers: Sequence[Observer], script: Script | None = None) -> JobResult:
    fleet = ThreadFleet(["node-0", "node-1"], script)
    return run_job(settings, parts_on(fleet, observers))


class Raises:
    """An observer that fails at whatever it hears."""

    def __init__(self) -> None:
        self.heard = 0

    def hear(self, event: Event) -> None:
        self.heard += 1
        raise RuntimeError("the observer's own")


@pytest.fixture
def settings(make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch) -> JobSettings:
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    return make_settings(shard_rows=10, replicas=2, job_id="job")


class Counted(ThreadCluster):
    """Counts how often it is started: a rented one costs from then on."""

    starts = 0

    def start(self) -> None:
        self.starts += 1


def _counted(
    settings: JobSettings, *, resume: bool = False, script: Script | None = None
) -> tuple[JobResult | JobPausedError, int]:
    fleet = ThreadFleet(["node-0", "node-1"], script)
    cluster = Counted(fleet)
    try:
        result = run_job(settings, replace(parts_on(fleet), cluster=cluster), resume=resume)
    except JobPausedError as error:
        return error, cluster.starts
    return result, cluster.starts


def test_a_job_without_a_row_left_starts_no_cluster(settings: JobSettings) -> None:
    _, starts = _counted(settings)
    again, no_starts = _counted(settings)
    assert (starts, no_starts) == (1, 0)
    assert isinstance(again, JobResult)
    assert again.counts["skipped"] == 50


def test_no_machine_is_rented_for_a_job_with_sqlite(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPU machines booted for it, and the job was refused when they had joined."""
    monkeypatch.setattr("ray._private.services.find_node_ids", set)
    fleet = ThreadFleet(["node-0"])
    provider: Any = SimpleNamespace(open=lambda run="": None)
    for standing in (False, True):
        cluster = Counted(fleet)
        where = ClusterSettings(provider=provider, standing=standing)
        with pytest.raises(ConfigError, match=r"SQLite.*one machine.*use PostgreSQL"):
            run_job(settings, replace(parts_on(fleet), cluster=cluster, where=where))
        assert cluster.starts == 0


@pytest.mark.heavy(one_of=3)
def test_a_job_whose_budget_is_spent_starts_no_cluster_until_it_is_raised(settings: JobSettings) -> None:
    """A schedule, or an automation, would rent its machines again and again."""
    poor = replace(settings, request=settings.request.model_copy(update={"budget": 0.01, "price": 1e6}))
    slow = Script(hold=lambda _: time.sleep(0.3))  # the driver looks at the bill before the last row
    more = replace(settings, request=poor.request.model_copy(update={"budget": 0.02}))
    for given, expected in ((poor, 1), (poor, 0), (more, 0)):
        error, starts = _counted(given, script=slow)
        assert isinstance(error, JobBlockedError)
        assert f"the budget of ${given.request.budget} is spent" in str(error)
        assert starts == expected
        with open_store(settings.store_url, create=False) as store:
            assert store.get_job("job").state is JobState.PAUSED
            assert has_spent_budget(store.get_job("job"))
    rich = replace(settings, request=poor.request.model_copy(update={"budget": 1e9}))
    result, starts = _counted(rich, resume=True)
    assert isinstance(result, JobResult)
    assert starts == 1


def test_no_observers_failure_ends_a_job_nor_keeps_others_from_hearing(settings: JobSettings) -> None:
    raises, heard = Raises(), Heard()
    result = _run(settings, [raises, heard])
    assert result.state == JobState.COMPLETED
    assert raises.heard == len(heard.events) > 0
    assert isinstance(heard.events[-1], Progressed)
    assert heard.events[-1].final
    assert (heard.events[-1].pulse.finished, heard.events[-1].pulse.total) == (50, 50)


def test_events_hold_no_prompt_and_no_answer(settings: JobSettings, job_input: Path) -> None:
    """Also those of a replica that is lost, and of shards that are tried again."""
    rows = [json.loads(line) for line in job_input.read_text().splitlines()]
    for row in rows:
        row["body"]["messages"][0]["content"] = "confidential-words"
    job_input.write_text("".join(json.dumps(row) + "\n" for row in rows))
    heard = Heard()
    result = _run(settings, [heard], LOST_ONCE)
    assert result.state == JobState.COMPLETED
    kinds = {type(event) for event in heard.events}
    assert {ReplicaReady, ReplicaLost, ShardFinished, Progressed} <= kinds
    for event in heard.events:
        assert "confidential-words" not in f"{event!r} {event.text}"


def test_what_ingest_found_and_why_an_attempt_ended_early_are_told(settings: JobSettings) -> None:
    heard = Heard()
    _run(settings, [heard], LOST_ONCE)
    told = [event.line for event in heard.events if isinstance(event, Told)]
    assert "ingest: 50 requests in 5 shards" in told
    assert [line for line in told if line.startswith("shard ") and "rows are kept" in line]


def test_gpus_that_stay_idle_are_warned_of(settings: JobSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.driver.whole_job.unused_gpus", lambda spec, cluster: ["8 GPUs are idle"])
    heard = Heard()
    _run(settings, [heard])
    assert [event.line for event in heard.events if isinstance(event, Warned)] == ["8 GPUs are idle"]


def test_a_job_that_cannot_be_done_says_why_in_its_store(settings: JobSettings) -> None:
    script = Script(most=0)  # there can be no replica
    heard = Heard()
    with pytest.raises(Exception, match="more than 0 replicas"):
        _run(settings, [heard], script)
    with open_store(settings.store_url, create=False) as store:
        job = store.get_job("job")
    assert job.state is JobState.FAILED
    assert job.reason is not None
    assert "more than 0 replicas" in job.reason


def test_a_disk_that_fills_as_the_job_publishes_pauses_it(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("dray.storage.draft.sync", full)
        with pytest.raises(JobPausedError, match="cannot be written: No space left on device; free space"):
            _run(settings, [])
    with open_store(settings.store_url, create=False) as store:
        job = store.get_job("job")
    assert job.state is JobState.PAUSED
    assert job.reason is not None
    assert "`dray resume JOB`" in job.reason
    assert _run(settings, []).state == JobState.COMPLETED


def test_a_disk_that_fills_under_temporary_files_pauses_it_too(settings: JobSettings) -> None:
    """There the error is Python's own, or has another one's words."""
    job = open_job(settings)
    full = OSError(errno.EDQUOT, "Disk quota exceeded")
    arranging = JobFailedError("/tmp: rows cannot be put in order there")
    arranging.__cause__ = full
    for error in (full, arranging):
        put_to_rest(job, error)
        with open_store(settings.store_url, create=False) as store:
            assert store.get_job("job").state is JobState.PAUSED
            store.set_job_state(job.lease, JobState.IN_PROGRESS)


def test_a_job_of_other_content_says_what_resumes_it_and_what_is_a_new_one(settings: JobSettings) -> None:
    _run(settings, [])
    with pytest.raises(
        JobChangedError, match=r"`dray resume job --store .*` goes on only .*`dray run` with another"
    ):
        open_job(replace(settings, model="another"), resume=True)


def test_a_job_that_failed_without_a_row_leaves_its_folder_to_the_next(settings: JobSettings) -> None:
    with pytest.raises(EngineStartError):
        _run(settings, [], Script(most=0))
    mended = replace(settings, job_id="mended")
    assert _run(mended, []).state == JobState.COMPLETED
    with pytest.raises(ConfigError, match="the folder belongs to job mended"):
        _run(settings, [])
    with open_store(settings.store_url, create=False) as store:
        assert store.get_job("job").state is JobState.FAILED


def test_a_job_that_failed_with_answers_keeps_its_folder(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("dray.storage.draft.sync", broken)
        with pytest.raises(JobFailedError, match="cannot be written"):
            _run(settings, [])
    with pytest.raises(ConfigError, match="the folder belongs to job job"):
        _run(replace(settings, job_id="other"), [])
    assert _run(settings, []).state == JobState.COMPLETED


def test_what_renting_says_before_there_is_a_driver_is_told(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def rented(*asked: Any, **_: Any) -> Iterator[list[Observer]]:
        tell = asked[4]
        tell(Told(line="the cluster: too few machines"))
        yield []

    monkeypatch.setattr("dray.driver.whole_job.rented_for", rented)
    heard = Heard()
    _run(settings, [heard])
    assert Told(line="the cluster: too few machines") in heard.events


class Rented(ThreadCluster):
    """A cluster of machines that a provider rents."""

    rented: Any = SimpleNamespace(markets=frozenset())


class OneJoined(ThreadFleet):
    """Four machines with a GPU each are rented, and three never join: replicas after the first wait."""

    def __init__(self) -> None:
        super().__init__(["node-0"])
        nodes = tuple(replace(one, gpus=1) for one in self.info.nodes)
        self.info = replace(self.info, own=False, nodes=nodes, unjoined=(1, 1, 1))

    def launch(self, *args: Any, **options: Any) -> Any:
        made = super().launch(*args, **options)
        if len(self.replicas) > 1:
            made.node = lambda: None  # type: ignore[method-assign]
            made.began = lambda: None  # type: ignore[method-assign]
        return made

    def capacity(self) -> Capacity:
        return Capacity(nodes=self.info.nodes, rooms=(Room(cpus=64, gpus=1, free_cpus=64, free_gpus=0),))


@pytest.mark.parametrize(
    ("changes", "started", "rented"),
    [
        ({}, "starting 4 replicas", (4, 4)),
        ({"replicas": 2}, "starting 2 replicas", (2, None)),
        ({"replicas": 1, "most_replicas": 4}, "starting 1 replica,", (1, None)),
        ({"engine_arguments": {"nnodes": 8}, "replica_gpus": 8.0}, "starting 1 replica,", (1, 8)),
    ],
)
def test_a_job_is_meant_for_all_machines_that_are_rented_and_runs_with_those_that_are_there(
    make_settings: Callable[..., JobSettings],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    started: str,
    rented: tuple[int, int | None],
) -> None:
    asked: list[tuple[int, int | None]] = []

    @contextmanager
    def renting(*given: Any, most: int | None, **_: Any) -> Iterator[Observer]:
        asked.append((given[1], most))
        yield Heard()

    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    monkeypatch.setattr("dray.driver.capacity.renting.Renting", renting)
    monkeypatch.setattr("dray.engine.replica.own_group", lambda: None)  # Ray would start for its answer
    given = {"replicas": None, "replica_gpus": 1.0, **changes}
    heard, settings = Heard(), make_settings(shard_rows=10, job_id="job", **given)
    fleet = OneJoined()
    result = run_job(settings, replace(parts_on(fleet, [heard]), cluster=Rented(fleet)))
    assert (result.state, result.counts["done"]) == (JobState.COMPLETED, 50)
    [told] = [one.line for one in heard.events if isinstance(one, Told) and one.line.startswith("starting")]
    assert told.startswith(started)
    assert ("3 machines still to come" in told) == (settings.replicas is None)
    assert asked == [rented]


class Obstructs:
    """An observer that puts a folder where the answers go, once the driver hears that the job is to stop."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def hear(self, event: Event) -> None:
        if isinstance(event, StopHeard):
            (self.path / "inside").mkdir(parents=True)


def test_an_expired_job_whose_files_cannot_be_written_stays_expired(
    make_settings: Callable[..., JobSettings],
) -> None:
    slow = {"seconds_per_token": 0.5, "max_num_seqs": 4}
    settings = make_settings(replicas=1, job_id="job", completion_window=2.5, engine_arguments=slow)
    answers = Path(settings.output) / "output.jsonl"
    with pytest.raises(JobFailedError, match="cannot be written"):
        _run(settings, [Obstructs(answers)])
    with open_store(settings.store_url, create=False) as store:
        job = store.get_job("job")
    assert job.state is JobState.EXPIRED
    assert "cannot be written" in (job.reason or "")
    (answers / "inside").rmdir()
    answers.rmdir()
    for _ in range(2):
        assert _run(settings, []).state == JobState.EXPIRED
    with open_store(settings.store_url, create=False) as store:
        assert (store.get_job("job").state, store.get_job("job").reason) == (JobState.EXPIRED, None)


def test_a_job_whose_time_is_over_before_its_weights_are_read_again_expires(
    make_settings: Callable[..., JobSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver died, and no other one came in time. Weights of a real model take longer than a look."""
    settings = make_settings(replicas=1, job_id="job", shard_rows=10)
    with pytest.raises(EngineStartError):
        _run(settings, [], Script(most=0))
    monkeypatch.setattr(Weighing, "check", lambda _, look: look())
    result = _run(replace(settings, completion_window=0.001), [])
    assert (result.state, result.counts["failed"]) == (JobState.EXPIRED, 50)


@pytest.mark.parametrize("lost", ["the folder was moved", "its requests were deleted"])
def test_a_job_whose_time_is_over_expires_though_its_requests_are_gone(
    make_settings: Callable[..., JobSettings], tmp_path: Path, lost: str
) -> None:
    """Its driver died, and the next one came late: it reads the input again, for the error rows."""
    store_url = f"sqlite:///{tmp_path / 'jobs.db'}"
    settings = make_settings(replicas=1, job_id="job", shard_rows=10, store_url=store_url)
    job = open_job(settings)
    answer(job, shards=2)
    with open_store(store_url, create=False) as store:
        store.release_job(job.lease)
    if lost == "the folder was moved":
        settings = replace(settings, output=str(tmp_path / "moved"))
        Path(job.settings.output).rename(settings.output)
    else:
        shutil.rmtree(Path(settings.output) / ".dray")
    result = _run(replace(settings, completion_window=0.001), [])
    assert result.state == JobState.EXPIRED
    assert (result.counts["total"], result.counts["done"], result.counts["failed"]) == (50, 20, 30)
    answers, errors = (Path(settings.output) / name for name in ("output.jsonl", "errors.jsonl"))
    assert answers.read_bytes().count(b"\n") == 20
    codes = [
        json.loads(line)["response"]["body"]["error"]["code"] for line in errors.read_text().splitlines()
    ]
    assert codes == ["expired"] * 30
    assert (Path(settings.output) / "report.html").exists()


def test_a_job_that_is_done_writes_its_files_again_though_its_weights_take_long_to_read(
    settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(settings, [])
    output = Path(settings.output) / "output.jsonl"
    answers = output.read_bytes()
    output.unlink()
    monkeypatch.setattr(Weighing, "check", lambda _, look: look())
    assert _run(settings, []).state == JobState.COMPLETED
    assert output.read_bytes() == answers
