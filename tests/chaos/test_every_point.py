"""SIGKILL at every point of ``dray/triggers.py`` in turn, then the same command again: I1 to I5 and I8.

Most runs are of ``tests.chaos.thread_job.py``: one process, one job of 200 rows. With ``--chaos-rounds``
below 5 each point is killed once, on either store, early or late, as the seed draws; else both ways on both,
and points that other processes reach are killed in the real command as well.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from dray.job.finalising import finalise_job
from dray.job.opening import open_job
from dray.job.timeline import Timeline
from dray.store import JobState, ShardState, open_store
from dray.triggers import Point
from tests.chaos.thread_job import JOB, POISON, REFUSED, SHARD_ROWS, settings_of
from tests.chaos.warm import WarmProcess, WarmServer
from tests.support.command import Command, run_arguments, write_requests
from tests.support.history import check_history
from tests.support.postgres import PostgresServer
from tests.support.rounds import MANY_ROUNDS
from tests.support.s3_emulator import EmulatorProcess
from tests.support.s3_writes import uploads

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

ROWS = 200
BAD_LINES = {7: "this is no JSON", 93: '{"custom_id": "row-93"}'}
REFUSED_ROW, POISON_ROW = 60, 130
FILES = ("output.jsonl", "errors.jsonl")
STORES = ("sqlite", "postgresql")

ONCE = {
    Point.JOB_CLAIMED,
    Point.INGEST_SPOOLED,
    Point.INGEST_PUBLISHED,
    Point.FINALISE_BEFORE,
    Point.FINALISE_WRITTEN,
    Point.FINALISE_RECORDED,
    Point.FINALISE_AFTER,
}
"""Points that an undisturbed run reaches one time only."""
AGAIN = sorted(set(Point) - {Point.INGEST_PUBLISHED})
"""Points that a resume reaches after a kill there: published shards are not published again."""
STANDSTILLS = (
    Point.INGEST_SPOOLED,
    Point.CLAIM_AFTER,
    Point.RESULTS_RECEIVED,
    Point.COMMIT_BEFORE,
    Point.FINISH_BEFORE,
    Point.RELEASE_BEFORE,
    Point.SPLIT_BEFORE,
    Point.VERDICT_BEFORE,
    Point.FINALISE_WRITTEN,
)
"""Points before a write: a driver that stands still there writes after another one has taken the job."""
PUBLISHING = (
    (Point.FINALISE_WRITTEN, 1),
    (Point.FINALISE_RECORDED, 1),
    (Point.FINALISE_RENAMED, 1),
    (Point.FINALISE_RENAMED, 2),
    (Point.FINALISE_RENAMED, 3),
)
"""Every step between a driver's last look at its lease and the job's final state, by point and count."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The sweep's cases, chosen by the printed seed where not all are run."""
    many = metafunc.config.option.chaos_rounds >= MANY_ROUNDS
    rng = random.Random(f"{metafunc.config.option.seed} every point")
    if "late" in metafunc.fixturenames:
        cases = list(_every_case() if many else _one_case_a_point(rng))
        metafunc.parametrize(("point", "store_kind", "late"), cases, ids=[_name(*case) for case in cases])
    elif "twice" in metafunc.fixturenames:
        chosen = [(point, store) for store in STORES for point in rng.sample(AGAIN, 5 if many else 1)]
        metafunc.parametrize(("twice", "store_kind"), chosen, ids=[f"{p}-{store}" for p, store in chosen])
    elif "step" in metafunc.fixturenames:
        places = [(store, place) for store in STORES for place in ("disk", "s3")]
        every_step = [(step, *where) for where in places for step in PUBLISHING]
        chosen_steps = every_step if many else [(rng.choice(PUBLISHING), rng.choice(STORES), "s3")]
        if not many and "stopped" in metafunc.function.__name__:
            chosen_steps.append((rng.choice(PUBLISHING), rng.choice(STORES), "disk"))
        metafunc.parametrize(("step", "store_kind", "place"), chosen_steps, ids=str)
    elif "standstill" in metafunc.fixturenames:
        every = [(point, store) for store in STORES for point in STANDSTILLS]
        chosen = every if many else [every[0], rng.choice(every[1:])]
        metafunc.parametrize(("standstill", "store_kind"), chosen, ids=[f"{p}-{s}" for p, s in chosen])


def _every_case() -> Iterator[tuple[Point, str, bool]]:
    for point in Point:
        for store in STORES:
            yield point, store, False
            if point not in ONCE:
                yield point, store, True


def _one_case_a_point(rng: random.Random) -> Iterator[tuple[Point, str, bool]]:
    for point in Point:
        yield point, rng.choice(STORES), rng.random() < 0.5 and point not in ONCE


def _name(point: Point, store: str, late: bool) -> str:
    return f"{point}-{store}{'-late' if late else ''}"


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A run that nothing happens to: its files' bytes, and how often it reaches each point."""

    contents: dict[str, bytes]
    files: list[str]
    reached: dict[str, int]

    def late_count(self, point: Point, rng: random.Random) -> int:
        """A count after the first that every run comes to; threads take turns differently each time."""
        # A claim is asked for as often as there is no place.
        sure = self.reached[Point.CLAIM_AFTER if point is Point.CLAIM_BEFORE else point]
        return rng.randint(2, max(2, sure // 2))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "in.jsonl"
    path.write_text("".join(f"{_line(number)}\n" for number in range(ROWS)))
    return path


def _line(number: int) -> str:
    if number in BAD_LINES:
        return BAD_LINES[number]
    words = {REFUSED_ROW: REFUSED, POISON_ROW: POISON}.get(number, "is plain")
    body = {"messages": [{"role": "user", "content": f"prompt {number} {words}"}], "max_tokens": 4}
    line = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmServer]:
    server = WarmServer(tmp_path_factory.mktemp("warm"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def undisturbed(warm: WarmServer, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    job = ThreadJob(warm, folder, inputs, f"sqlite:///{folder / 'jobs.db'}")
    counted = job.triggers("count")
    every = ";".join(f"{point}:1000000" for point in Point)  # counted, and never done
    assert job.run(every, counted) == 0, job.said()
    reached = {file.name.removesuffix(".count"): file.stat().st_size for file in counted.iterdir()}
    contents = {name: (job.output / name).read_bytes() for name in FILES}
    return Undisturbed(contents=contents, files=job.files(), reached=reached)


@pytest.fixture
def make_job(
    warm: WarmServer, inputs: Path, tmp_path: Path, store_kind: str, request: pytest.FixtureRequest
) -> Callable[..., ThreadJob]:
    made = itertools.count()

    def make(bucket: Path | None = None, **settings: object) -> ThreadJob:
        folder = tmp_path / f"job-{next(made)}"
        folder.mkdir()
        url = f"sqlite:///{folder / 'jobs.db'}"
        if store_kind == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            url = server.url(server.create_database())
        return ThreadJob(warm, folder, inputs, url, bucket=bucket, **settings)

    return make


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    process = EmulatorProcess(tmp_path_factory.mktemp("s3"))
    yield process
    process.stop()


@pytest.fixture
def bucket(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path | None:
    """The folder of a bucket of its own on the S3 emulator, which the environment names; None for a disk."""
    if place == "disk":
        return None
    emulator: EmulatorProcess = request.getfixturevalue("emulator")
    monkeypatch.setenv("AWS_ENDPOINT_URL", emulator.url)
    for name, value in (("REGION", "us-east-1"), ("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(f"AWS_{name}", value)
    folder = emulator.root / tmp_path.name.replace("_", "-").lower()
    folder.mkdir()
    return folder


class ThreadJob:
    """One job, run by ``thread_job`` as often as it takes; its history is kept outside of its store."""

    def __init__(
        self,
        warm: WarmServer,
        folder: Path,
        inputs: Path,
        store_url: str,
        *,
        bucket: Path | None = None,
        **settings: object,
    ) -> None:
        self._warm = warm
        self.folder = folder
        self.output = (bucket or folder) / "out"
        self.store_url = store_url
        self.bucket = bucket
        self._settings = folder / "settings.json"
        output = str(self.output) if bucket is None else f"s3://{bucket.name}/out"
        given = {"input": str(inputs), "output": output, "store_url": store_url, **settings}
        self._settings.write_text(json.dumps(given))
        self._temporary = folder / "tmp"
        self._temporary.mkdir()

    def triggers(self, name: str) -> Path:
        """A folder for a trigger to be counted in."""
        found = self.folder / f"triggers-{name}"
        found.mkdir()
        return found

    def start(self, trigger: str = "", counted: Path | None = None) -> WarmProcess:
        """The command, which is the same each time."""
        environment = {
            **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
            "DRAY_HISTORY_DIR": str(self.folder / "history"),
            "DRAY_TRIGGER": trigger,
            "DRAY_TRIGGER_DIR": str(counted or ""),
            "TMPDIR": str(self._temporary),
        }
        return self._warm.start(json.loads(self._settings.read_text()), environment, self.folder / "log")

    def run(self, trigger: str = "", counted: Path | None = None) -> int:
        """Run it to its end; its exit code, negative where a signal ended it."""
        process = self.start(trigger, counted)
        try:
            return process.wait(100)
        finally:
            process.kill()
            process.wait()

    def run_into(self, point: Point, count: int, name: str = "kill") -> Path:
        """Run it until it is killed at a point, which it must be."""
        counted = self.triggers(name)
        process = self.start(f"{point}:{count}", counted)
        try:
            code = process.wait(100)
        finally:
            process.kill()
            process.wait()
        assert code == -signal.SIGKILL, f"it ended with {code}, not at {point}:{count}\n{self.said()}"
        assert (counted / f"{point}.fired").read_text() == f"{process.pid}\n"
        return counted

    def said(self) -> str:
        """The end of what the runs said."""
        return (self.folder / "log").read_text()[-5000:]

    def files(self) -> list[str]:
        """What lies in the output folder, whichever driver has written the spool."""
        found = [str(path.relative_to(self.output)) for path in self.output.rglob("*") if path.is_file()]
        return sorted(re.sub(r"-[0-9a-f]{12}/requests-\d+\.", "/requests.", name) for name in found)

    def written(self) -> list[object]:
        """All that a driver or a worker writes: rows, shards, attempts, charges, and files by name."""
        with open_store(self.store_url, create=False) as store:
            rows = store.done_indexes(JOB, range(ROWS))
            return [rows, store.shards(JOB), store.attempts(JOB), store.charges(JOB), self.published()]

    def takes_writes(self) -> bool:
        """Whether no process holds a lock that keeps the others from the store."""
        if not self.store_url.startswith("sqlite"):
            return True
        with closing(sqlite3.connect(self.folder / "jobs.db", timeout=0.1)) as database:
            try:
                database.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                return False
        return True

    def published(self) -> list[str]:
        """The files of the output that have their names."""
        return [name for name in (*FILES, "report.html") if (self.output / name).exists()]

    def after_kill(self, expected: Undisturbed) -> None:
        """What holds before anything mends it: nothing acknowledged is gone, and files are whole."""
        check_history(self.folder / "history", self.store_url, JOB, finished=False)
        for name in FILES:
            if (self.output / name).exists():
                assert (self.output / name).read_bytes() == expected.contents[name], f"{name} is in between"

    def at_the_end(self, expected: Undisturbed) -> None:
        """I1 to I5 and I8, and nothing left; also after its outputs are written once more."""
        figures = check_history(self.folder / "history", self.store_url, JOB, self.output)
        self._is_over(expected)
        again = open_job(settings_of(self._settings))
        finalise_job(again, Timeline())
        with open_store(self.store_url, create=False) as store:
            store.release_job(again.lease)
        self._is_over(expected)
        assert figures.rows == ROWS
        print(figures)

    def _is_over(self, expected: Undisturbed) -> None:
        for name in FILES:
            assert (self.output / name).read_bytes() == expected.contents[name], f"I8: {name} differs"
        assert self.files() == expected.files, "files are left over"
        if self.bucket is None:
            assert list(self._temporary.iterdir()) == []
        else:
            assert uploads(self.bucket.parent) == []
        with open_store(self.store_url, create=False) as store:
            job, shards, attempts = store.get_job(JOB), store.shards(JOB), store.attempts(JOB)
        assert job.state is JobState.COMPLETED
        assert (job.driver, job.driver_until) == (None, None)
        assert {shard.state for shard in shards} <= {ShardState.DONE, ShardState.SPLIT}
        assert {(shard.owner, shard.lease_until, shard.replica) for shard in shards} == {(None, None, None)}
        assert [attempt for attempt in attempts if attempt.cause is None] == []


def test_every_point_is_reached(undisturbed: Undisturbed) -> None:
    """A point that is not reached here would need a case of its own."""
    assert undisturbed.reached.keys() == set(Point)
    assert {point for point, times in undisturbed.reached.items() if times == 1} == ONCE
    assert {point for point, *_ in _every_case()} == set(Point)
    assert [point for point, *_ in _one_case_a_point(random.Random(0))] == list(Point)


def test_the_undisturbed_run_is_what_it_should_be(undisturbed: Undisturbed) -> None:
    errors = [json.loads(line) for line in undisturbed.contents["errors.jsonl"].splitlines()]
    assert [int(line["id"].rpartition("_")[2]) for line in errors] == sorted(
        [*BAD_LINES, REFUSED_ROW, POISON_ROW]
    )
    assert errors[-1]["error"]["code"] == "poison"
    assert undisturbed.contents["output.jsonl"].count(b"\n") == ROWS - len(errors)
    spool = f".dray/{JOB}/requests.jsonl"
    assert undisturbed.files == [
        spool,
        f"{spool}.rejects",
        ".dray/owner.json",
        "errors.jsonl",
        "output.jsonl",
        "report.html",
    ]
    assert ROWS // SHARD_ROWS >= 4


def test_a_kill_and_a_resume(
    point: Point,
    late: bool,
    make_job: Callable[..., ThreadJob],
    undisturbed: Undisturbed,
    rng: random.Random,
) -> None:
    job = make_job()
    count = undisturbed.late_count(point, rng) if late else 1
    counted = job.run_into(point, count)
    job.after_kill(undisturbed)
    assert [name for name in FILES if (job.output / name).exists()] == _named(point, count)
    assert job.run(f"{point}:{count}", counted) == 0, job.said()
    job.at_the_end(undisturbed)


def _named(point: Point, count: int) -> list[str]:
    """The output files that have their names when a point is reached for the count-th time."""
    if point is Point.FINALISE_AFTER:
        return [*FILES]
    return [*FILES][-count:] if point is Point.FINALISE_RENAMED else []  # errors first


def test_a_second_kill_in_the_resume(
    twice: Point, make_job: Callable[..., ThreadJob], undisturbed: Undisturbed
) -> None:
    job = make_job()
    job.run_into(twice, 1, "first")
    job.after_kill(undisturbed)
    job.run_into(twice, 1, "second")
    job.after_kill(undisturbed)
    assert job.run() == 0, job.said()
    job.at_the_end(undisturbed)


def test_who_stood_still_while_another_took_the_job_changes_nothing(
    standstill: Point, make_job: Callable[..., ThreadJob], undisturbed: Undisturbed
) -> None:
    """The dead write nothing: only who wakes up again shows that leases fence."""
    job, old = _stopped_job(make_job, standstill, 1)
    point = Point.JOB_CLAIMED  # the new driver has done nothing yet: whatever the old one writes would show
    counted = job.triggers("new")
    processes = [old]
    try:
        time.sleep(1.2)  # its lease lapses
        processes.append(job.start(f"{point}=stop", counted))
        _wait_until_stopped(processes[1], counted / f"{point}.fired")
        before = job.written()
        processes[0].send_signal(signal.SIGCONT)
        assert processes[0].wait(60) > 0, "it believes that it has done the job"
        assert "FencedError" in job.said()
        assert job.written() == before, "I3: it has written"
        job.after_kill(undisturbed)
        processes[1].send_signal(signal.SIGCONT)
        assert processes[1].wait(60) == 0, job.said()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    job.at_the_end(undisturbed)


def test_a_driver_killed_while_publishing_is_made_good(
    step: tuple[Point, int], bucket: Path | None, make_job: Callable[..., ThreadJob], undisturbed: Undisturbed
) -> None:
    job = make_job(bucket=bucket)
    job.run_into(*step)
    job.after_kill(undisturbed)
    assert [name for name in FILES if (job.output / name).exists()] == _named(*step)
    assert job.run() == 0, job.said()
    job.at_the_end(undisturbed)


def test_a_driver_stopped_while_publishing_replaces_no_file_of_its_successor(
    step: tuple[Point, int], bucket: Path | None, make_job: Callable[..., ThreadJob], undisturbed: Undisturbed
) -> None:
    """The successor ends the job before the one of old goes on: its files must be those at the end."""
    job, old = _stopped_job(partial(make_job, bucket=bucket), *step)
    try:
        time.sleep(1.2)  # its lease lapses
        assert job.run() == 0, job.said()
        before = job.written()
        old.send_signal(signal.SIGCONT)
        assert old.wait(60) > 0, "it believes that it has done the job"
        assert "FencedError" in job.said()
        assert job.written() == before, "I3: it has written"
    finally:
        old.kill()
        old.wait()
    job.at_the_end(undisturbed)


def _stopped_job(
    make_job: Callable[..., ThreadJob], point: Point, count: int
) -> tuple[ThreadJob, WarmProcess]:
    """A job whose driver stands still at a point, and holds no lock of the store.

    All threads of a process stop together. One of them may be in a transaction, and keep SQLite's only lock:
    what then follows is of tests/integration/store. Such a job is left, and another one begun.
    """
    for _ in range(20):
        job = make_job(driver_ttl=1.0, lanes=1)
        counted = job.triggers("old")
        driver = job.start(f"{point}:{count}=stop", counted)
        try:
            _wait_until_stopped(driver, counted / f"{point}.fired")
            if job.takes_writes():
                return job, driver
        except BaseException:
            driver.kill()
            raise
        driver.kill()
        driver.wait()
        if job.bucket is not None:
            assert job.run() == 0, job.said()  # it takes what was begun in the bucket with it
            shutil.rmtree(job.output)
    raise AssertionError("each driver was stopped in a transaction")


def _wait_until_stopped(process: WarmProcess, fired: Path) -> None:
    deadline = time.monotonic() + 60
    state = ""
    while state != "T" or not fired.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline, "it did not come to the point"
        time.sleep(0.02)
        state = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


# ---- the real command: Prefect, Ray, and a process for each part ----

SURVIVED = (
    Point.REPLICA_ADMIT,
    Point.REPLICA_DELIVER,
    Point.RESULTS_RECEIVED,
    Point.COMMIT_AFTER,
    Point.SPLIT_AFTER,
)
"""Reached in a replica, or in the process of a shard's task: the same run goes on without it."""
COMMAND_KILLED = (Point.JOB_CLAIMED, Point.FINALISE_WRITTEN)
"""Reached in the command's own process."""
REAL_ROWS, REAL_SHARD_ROWS = 60, 12


@pytest.fixture(scope="module")
def real_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_requests(tmp_path_factory.mktemp("real") / "in.jsonl", REAL_ROWS)


@pytest.fixture(scope="module")
def real_contents(
    real_inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[bool], list[bytes]]:
    """Output and errors of runs that nothing happens to, with and without a row that kills engines."""
    known: dict[bool, list[bytes]] = {}

    def contents(crashes: bool) -> list[bytes]:
        if crashes not in known:
            job = RealJob(tmp_path_factory.mktemp("peace"), real_inputs, crashes=crashes)
            ended = job.start().wait(300)
            assert ended.code == 0, ended.stderr
            known[crashes] = [(job.output / name).read_bytes() for name in FILES]
        return known[crashes]

    return contents


class RealJob:
    """One job of the real command on a local cluster, with one trigger."""

    def __init__(
        self, folder: Path, inputs: Path, point: Point | None = None, *, crashes: bool = False
    ) -> None:
        self.output = folder / "out"
        self.history = folder / "history"
        self.fired = folder / "triggers" / f"{point}.fired"
        self.fired.parent.mkdir()
        self._folder = folder
        settings = ("max_num_seqs=4", "seconds_per_token=0.01", *(["crash_on=number 31"] if crashes else []))
        more = ("--shard-rows", str(REAL_SHARD_ROWS))
        self._arguments = run_arguments(inputs, self.output, *more, settings=settings)
        self._environment = {"DRAY_HISTORY_DIR": str(self.history), "DRAY_NO_WAIT": "1"}
        if point is not None:
            triggers = {"DRAY_TRIGGER": str(point), "DRAY_TRIGGER_DIR": str(self.fired.parent)}
            self._environment |= triggers
        self._runs = 0

    def start(self) -> Command:
        """The command, which is the same each time."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        return Command(arguments=self._arguments, folder=folder, environment=self._environment)

    def finished(self, command: Command, expected: list[bytes]) -> None:
        """It ends well by itself, with all that holds then, and leaves nothing."""
        ended = command.wait(300)
        assert ended.code == 0, ended.stderr[-6000:]
        assert self.fired.exists(), "nothing was killed"
        store = f"sqlite:///{self.output / 'dray.db'}"
        print(check_history(self.history, store, JOB, self.output))
        assert [(self.output / name).read_bytes() for name in FILES] == expected
        assert [path for path in self.output.rglob("*") if path.suffix in (".part", ".old")] == []
        with open_store(store, create=False) as opened:
            assert opened.get_job(JOB).driver is None
            assert {shard.owner for shard in opened.shards(JOB)} == {None}
        command.assert_nothing_left()


@pytest.mark.long
@pytest.mark.parametrize("point", SURVIVED)
def test_the_command_survives_a_kill_elsewhere(
    point: Point, real_inputs: Path, real_contents: Callable[[bool], list[bytes]], tmp_path: Path
) -> None:
    crashes = point is Point.SPLIT_AFTER
    expected = real_contents(crashes)
    job = RealJob(tmp_path, real_inputs, point, crashes=crashes)
    command = job.start()
    pid = command.process.pid
    job.finished(command, expected)
    assert int(job.fired.read_text()) != pid


@pytest.mark.long
@pytest.mark.parametrize("point", COMMAND_KILLED)
def test_the_command_is_killed_and_run_again(
    point: Point, real_inputs: Path, real_contents: Callable[[bool], list[bytes]], tmp_path: Path
) -> None:
    expected = real_contents(False)
    job = RealJob(tmp_path, real_inputs, point)
    killed = job.start()
    assert killed.wait(300).code == -signal.SIGKILL, killed.stderr()[-6000:]
    assert int(job.fired.read_text()) == killed.process.pid
    killed.assert_nothing_left()
    assert [name for name in FILES if (job.output / name).exists()] == []
    job.finished(job.start(), expected)
