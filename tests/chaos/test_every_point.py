"""SIGKILL at every point of ``dray/triggers.py`` in turn, then the same command again: I1 to I5 and I8.

Most runs are of ``tests.chaos.thread_job.py``: one process, one job of 200 rows. With ``--chaos-rounds``
below 5 an eighth of the points is, once each, on either store, early or late, as the seed draws; else all
are, both ways on both, and points that other processes reach are killed in the real command as well.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dray.triggers import Point
from tests.chaos.resumed_command import REAL_ROWS, RealJob
from tests.chaos.resumed_job import (
    BAD_LINES,
    FILES,
    MISSING_ROW,
    POISON_ROW,
    REFUSED_ROW,
    ROWS,
    ThreadJob,
    Undisturbed,
    stopped_job,
    wait_until_stopped,
    write_lines,
)
from tests.chaos.thread_job import JOB, SHARD_ROWS
from tests.chaos.warm import WarmServer
from tests.support.command import write_requests
from tests.support.postgres import PostgresServer
from tests.support.rounds import MANY_ROUNDS
from tests.support.s3_emulator import EmulatorProcess

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

STORES = ("sqlite", "postgresql")

ONCE = {
    Point.JOB_CLAIMED,
    Point.INGEST_ARRANGED,
    Point.INGEST_SPOOLED,
    Point.INGEST_PUBLISHED,
    Point.FOLLOW_BEFORE,
    Point.FOLLOW_AFTER,
    Point.FINALISE_BEFORE,
    Point.FINALISE_WRITTEN,
    Point.FINALISE_RECORDED,
    Point.FINALISE_AFTER,
}
"""Points that an undisturbed run reaches one time only."""
SWEPT = {Point.FOLLOW_BEFORE, Point.FOLLOW_AFTER}
"""Those of them that a run of more than two seconds reaches again, on a busy machine say."""
AGAIN = sorted(set(Point) - {Point.INGEST_PUBLISHED})
"""Points that a resume reaches after a kill there: published shards are not published again."""
STANDSTILLS = (
    Point.INGEST_PART_FULL,
    Point.INGEST_PART_NAMED,
    Point.INGEST_SPOOLED,
    Point.CLAIM_AFTER,
    Point.RESULTS_RECEIVED,
    Point.COMMIT_BEFORE,
    Point.FINISH_BEFORE,
    Point.RELEASE_BEFORE,
    Point.SPLIT_BEFORE,
    Point.VERDICT_BEFORE,
    Point.FOLLOW_BEFORE,
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
        cases = list(_every_case() if many else _some_of_the_points(rng))
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


def _some_of_the_points(rng: random.Random) -> Iterator[tuple[Point, str, bool]]:
    for point in rng.sample(list(Point), -(-len(Point) // 8)):
        yield point, rng.choice(STORES), rng.random() < 0.5 and point not in ONCE


def _name(point: Point, store: str, late: bool) -> str:
    return f"{point}-{store}{'-late' if late else ''}"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "in.jsonl"
    write_lines(path)
    return path


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


def test_every_point_is_reached(undisturbed: Undisturbed) -> None:
    """A point that is not reached here would need a case of its own."""
    assert undisturbed.reached.keys() == set(Point)
    assert {point for point, times in undisturbed.reached.items() if times == 1} | SWEPT == ONCE
    assert {point for point, *_ in _every_case()} == set(Point)
    drawn = {point for seed in range(40) for point, *_ in _some_of_the_points(random.Random(seed))}
    assert drawn == set(Point)


def test_the_undisturbed_run_is_what_it_should_be(undisturbed: Undisturbed) -> None:
    errors = [json.loads(line) for line in undisturbed.contents["errors.jsonl"].splitlines()]
    assert [int(line["id"].rpartition("_")[2]) for line in errors] == sorted(
        [*BAD_LINES, REFUSED_ROW, REFUSED_ROW + 7, POISON_ROW, POISON_ROW + 7, MISSING_ROW]
    )
    assert errors[-1]["error"]["code"] == "poison"
    assert undisturbed.contents["output.jsonl"].count(b"\n") == ROWS - len(errors)
    spool = f".dray/{JOB}/requests"
    assert undisturbed.files == [
        *(f"{spool}-{number:05d}.jsonl" for number in (1, 2)),
        f"{spool}.jsonl",
        f"{spool}.jsonl.followers",
        f"{spool}.jsonl.rejects",
        ".dray/owner.json",
        "errors.jsonl",
        "output.jsonl",
        "report.html",
    ]
    assert ROWS // SHARD_ROWS >= 4


def test_each_row_computed_by_itself_gives_the_same_bytes(
    warm: WarmServer, inputs: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    job = ThreadJob(warm, tmp_path, inputs, f"sqlite:///{tmp_path / 'jobs.db'}", dedupe=False)
    assert job.run() == 0, job.said()
    assert {name: (job.output / name).read_bytes() for name in FILES} == undisturbed.contents


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
    job, old = stopped_job(make_job, standstill, 1)
    point = Point.JOB_CLAIMED  # the new driver has done nothing yet: whatever the old one writes would show
    counted = job.triggers("new")
    processes = [old]
    try:
        time.sleep(1.2)  # its lease lapses
        processes.append(job.start(f"{point}=stop", counted))
        wait_until_stopped(processes[1], counted / f"{point}.fired", job.said)
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
    job, old = stopped_job(partial(make_job, bucket=bucket), *step)
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
