"""Engines that crash, run out of memory or stand still, and rows that make them do so."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dray.store import JobState, open_store
from tests.support.chaos import Job
from tests.support.command import ROOT, write_requests
from tests.support.raylets import Raylets, Shape

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

MODEL = ROOT / "examples/tickets/model"
TICKETS = ROOT / "examples/tickets/requests.jsonl"
ROWS = 500


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    found = Raylets(tmp_path_factory.mktemp("raylets"), 1, shape=Shape(head_cpus=2))
    yield found
    found.stop()


@pytest.fixture
def make_job(raylets: Raylets, tmp_path: Path) -> Callable[..., Job]:
    def make(**changes: object) -> Job:
        values: dict[str, object] = {
            "rows": ROWS,
            "replicas": 2,
            "settings": ("max_num_seqs=16", "seconds_per_token=0.005"),
            "environment": {"DRAY_NO_WAIT": "1"},
        }
        return Job(raylets=raylets, folder=tmp_path, **{**values, **changes})  # type: ignore[arg-type]

    return make


def _with_word(path: Path, rows: int, bad: set[int], word: str) -> Path:
    """Requests of which those in ``bad`` say ``word``."""
    write_requests(path, rows)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(
        "".join(line.replace(" number ", f" {word} ") if n in bad else line for n, line in enumerate(lines))
    )
    return path


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({250}, id="middle", marks=pytest.mark.heavy),
        pytest.param({0}, id="first", marks=pytest.mark.long),
        pytest.param({ROWS - 1}, id="last", marks=pytest.mark.long),
        pytest.param({300, 301}, id="two", marks=pytest.mark.long),
    ],
)
def test_poison_rows_are_found_and_nothing_else_fails(
    bad: set[int], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job(
        inputs=_with_word(tmp_path / "in.jsonl", ROWS, bad, "POISON"),
        settings=("max_num_seqs=16", "seconds_per_token=0.005", "crash_on=POISON"),
    )
    figures = job.finished(job.start(), 400)
    errors = [json.loads(line) for line in (job.output / "errors.jsonl").read_text().splitlines()]
    assert {(e["custom_id"], e["error"]["code"]) for e in errors} == {(f"row-{n}", "poison") for n in bad}
    deaths = job.budgets()["model"]
    print(f"{len(bad)} poison rows of {ROWS}: {deaths} engines died;", figures)
    assert deaths <= len(bad) * (math.log2(2.5 * 16) + 4)  # docs/interruptions.md
    assert set(job.budgets()) == {"model", "replica"}
    assert job.causes() <= {"ENGINE_CRASH"}


@pytest.mark.long
def test_an_engine_that_always_dies_ends_the_job_and_accuses_no_row(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job(
        rows=40,
        inputs=_with_word(tmp_path / "in.jsonl", 40, set(range(40)), "POISON"),
        settings=("max_num_seqs=16", "crash_on=POISON"),
    )
    run = job.start()
    ended = run.wait(500)
    assert ended.code == 1, ended.stderr
    assert "ENGINE_CRASH" in ended.stderr
    assert "no more are allowed" in ended.stderr
    run.assert_nothing_left()


@pytest.mark.long
def test_too_little_memory_shrinks_the_engines(make_job: Callable[..., Job], tmp_path: Path) -> None:
    job = make_job(
        inputs=_with_word(tmp_path / "in.jsonl", ROWS, {100}, "HUNGRY"),
        settings=("max_num_seqs=16", "seconds_per_token=0.02", "oom_on=HUNGRY", "oom_above=5"),
        replicas=1,
    )
    run = job.start()
    print(job.finished(run))
    assert job.causes() == {"OOM"}
    assert job.budgets() == {"oom": 2}
    assert "4 requests at a time" in run.stderr()  # 16, halved twice


@pytest.mark.long
def test_a_row_for_which_memory_never_suffices_is_an_error_row(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job(
        inputs=_with_word(tmp_path / "in.jsonl", ROWS, {100}, "HUNGRY"),
        settings=("max_num_seqs=16", "seconds_per_token=0.02", "oom_on=HUNGRY", "oom_above=0"),
        replicas=1,
    )
    print(job.finished(job.start(), 400))
    [error] = [json.loads(line) for line in (job.output / "errors.jsonl").read_text().splitlines()]
    assert (error["custom_id"], error["error"]["code"]) == ("row-100", "out_of_memory")
    assert job.causes() == {"OOM"}
    assert job.budgets()["oom"] == 2  # then the row is looked for


@pytest.mark.long
def test_an_engine_that_stands_still_is_ended(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """One row that never ends: found as poison rows are, at the price of a wait for each try."""
    job = make_job(
        rows=60,
        inputs=_with_word(tmp_path / "in.jsonl", 60, {30}, "STUCK"),
        settings=("max_num_seqs=8", "seconds_per_token=0.005", "stall_on=STUCK"),
        more=("--stall-seconds", "2"),
    )
    figures = job.finished(job.start(), 300)
    [error] = [json.loads(line) for line in (job.output / "errors.jsonl").read_text().splitlines()]
    assert (error["custom_id"], error["error"]["code"]) == ("row-30", "poison")
    print(figures)


@pytest.mark.long
@pytest.mark.parametrize("core", ["inside", "apart"])
def test_replicas_with_vllm_are_killed(make_job: Callable[..., Job], core: str) -> None:
    """With a core apart, the second to be killed is the core, and not its front."""
    pytest.importorskip("vllm")
    rows = TICKETS.read_bytes().count(b"\n")
    job = make_job(
        rows=rows,
        inputs=TICKETS,
        replicas=1,
        settings=("max_num_seqs=16", f"engine_core={core}"),
        engine="vllm",
        model=str(MODEL),
        more=("--shard-rows", "400"),
    )
    run = job.start()
    fronts: set[int] = set()
    for part in (0.2, 0.6):
        job.until_committed(run, int(part * rows))
        [front] = {line.pid for line in job.admitted()} - fronts
        os.kill(_core_of(front) if fronts and core == "apart" else front, signal.SIGKILL)
        fronts.add(front)
    figures = job.finished(run, 500)
    print(figures)
    assert job.causes() == {"ENGINE_CRASH"}
    assert job.budgets()["model"] == 2


def _core_of(front: int) -> int:
    children = psutil.Process(front).children()
    [core] = [child for child in children if "vllm_adapter.core.process" in " ".join(child.cmdline())]
    return int(core.pid)


@pytest.mark.long
def test_a_job_whose_time_is_over(make_job: Callable[..., Job]) -> None:
    job = make_job(settings=("max_num_seqs=4", "seconds_per_token=0.2"), more=("--completion-window", "60s"))
    run = job.start()
    ended = run.wait(180)
    assert ended.code == 1, ended.stderr  # it is not all done
    job.assert_released()
    figures = job.check()
    print(ended.json["state"], figures)
    with open_store(job.store, create=False) as store:
        assert store.get_job("job").state is JobState.EXPIRED
        counts = store.verify_counts("job")
    assert counts.done > 0
    assert counts.pending == 0
    errors = [json.loads(line) for line in (job.output / "errors.jsonl").read_text().splitlines()]
    assert {error["error"]["code"] for error in errors} == {"expired"}
    assert len(errors) == counts.failed
