"""Randomised runs of the real driver on threads: ``python -m tests.chaos.swarm --runs 10000 --seed 7``.

Each run is a small job with bad rows and lost replicas, whose driver is killed or stopped at points that the
seed draws (``dray/triggers.py``), up to three times, and then runs to its end. Nothing may be lost, doubled,
different or left behind. A run costs a fraction of a second: its processes are forked from one that has
imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dray import history, triggers
from dray.requests.model import FOLLOWED
from dray.store import JobState, ShardState, open_store
from dray.triggers import Point
from tests.chaos import thread_job
from tests.chaos.warm import fork_job, import_all
from tests.support.history import check_history
from tests.support.postgres import PostgresServer

ACTIONS = ("kill", "kill", "kill", "stall", "overtaken", "raise")
"""What is done to a driver at a point; ``overtaken``: its successor runs while it stands still."""

FILES = ("output.jsonl", "errors.jsonl")
SECONDS = 120.0
_SHAPES = ((24, 6), (60, 20), (60, 7), (120, 40))  # rows, and rows of a shard
_TTL = 0.5  # of the lease of a driver that is to be overtaken


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that happens to one driver, at the ``count``-th time that it comes to a point."""

    point: Point
    count: int
    action: str

    def __str__(self) -> str:
        return f"{self.action} at {self.point}:{self.count}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run, as the seed draws it."""

    number: int
    postgres: bool
    rows: int
    shard_rows: int
    lanes: int
    bad: tuple[int, ...]
    refused: tuple[int, ...]
    lost: tuple[tuple[int, int], ...]
    faults: tuple[Fault, ...]
    dedupe: bool = False

    def __str__(self) -> str:
        store = "postgresql" if self.postgres else "sqlite"
        told = f"run {self.number}: {store}, {self.rows} rows by {self.shard_rows}, {self.lanes} replicas"
        return f"{told}, bad {list(self.bad)}, lost {list(self.lost)}, {'; '.join(map(str, self.faults))}"


def plan_of(seed: int, number: int, *, dedupe: bool = False) -> Plan:
    """The plan of a run; the same for the same seed and number.

    With ``dedupe``, three rows in ten ask what another row asks, and are not computed.
    """
    rng = random.Random(f"{seed}/{number}")
    rows, shard_rows = rng.choice(_SHAPES)
    postgres = rng.random() < 0.4
    overtaken = postgres and rng.random() < 0.2  # on SQLite the one that stands still may keep the only lock
    actions = ["overtaken"] if overtaken else [one for one in ACTIONS if one != "overtaken"]
    faults = [
        Fault(point=rng.choice(list(Point)), count=rng.randint(1, 4), action=rng.choice(actions))
        for _ in range(1 if overtaken else rng.randint(1, 3))
    ]
    return Plan(
        number=number,
        postgres=postgres,
        rows=rows,
        shard_rows=shard_rows,
        lanes=rng.randint(1, 3),
        bad=tuple(sorted(rng.sample(range(rows), rng.choice((0, 0, 1, 2))))),
        refused=tuple(sorted(rng.sample(range(rows), rng.choice((0, 1, 3))))),
        lost=tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(rng.choice((0, 0, 1, 3)))),
        faults=tuple(faults),
        dedupe=dedupe,
    )


@dataclass
class Tally:
    """What came of runs."""

    runs: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    recomputed: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Put another one's into this one."""
        self.runs += other.runs
        self.fired += other.fired
        self.acknowledged += other.acknowledged
        self.recomputed += other.recomputed
        self.failures += other.failures

    @property
    def line(self) -> str:
        """It in a line."""
        faults = ", ".join(f"{count} {what}" for what, count in sorted(self.fired.items()))
        rows = f"{self.acknowledged:,} rows acknowledged, {self.recomputed:,} computed again"
        return f"{self.runs:,} runs, {len(self.failures)} failed; {faults or 'no fault'}; {rows}"


# -- one run ----------------------------------------------------------------------------------------


class Job:
    """The files, store and processes of one run."""

    def __init__(self, folder: Path, plan: Plan, store_url: str) -> None:
        self.folder = folder
        self.plan = plan
        self.name = f"job-{plan.number}"
        self.output = folder / "out"
        self.store_url = store_url
        self.inputs = folder / "in.jsonl"
        self.inputs.write_text("".join(f"{json.dumps(_line(plan, row))}\n" for row in range(plan.rows)))
        self._starts = 0

    def given(self) -> dict[str, Any]:
        """What :func:`thread_job.run` is given."""
        return {
            "input": str(self.inputs),
            "output": str(self.output),
            "store_url": self.store_url,
            "job": self.name,
            "lanes": self.plan.lanes,
            "shard_rows": self.plan.shard_rows,
            "lost": [],
            "dedupe": self.plan.dedupe,
        }

    def start(self, fault: Fault | None, *, lost: Sequence[tuple[int, int]] = (), ttl: float | None) -> int:
        """Fork a driver; its pid."""
        self._starts += 1
        given = self.given() | {"lost": list(lost)} | ({} if ttl is None else {"driver_ttl": ttl})
        environment = {
            history.FOLDER_VARIABLE: str(self.folder / "history"),
            "TMPDIR": str(self.folder / "tmp"),
        }
        if fault is not None:
            action = {"stall": "stop", "overtaken": "stop"}.get(fault.action, fault.action)
            environment[triggers.TRIGGER_VARIABLE] = f"{fault.point}:{fault.count}={action}"
        return fork_job(given, environment, self.folder / "log")

    def is_completed(self) -> bool:
        """Whether the store says that the job is done."""
        with open_store(self.store_url, create=False) as store:
            found = store.find_job(self.name)
        return found is not None and found.state is JobState.COMPLETED

    def said(self) -> str:
        """The end of what the drivers said."""
        log = self.folder / "log"
        return log.read_text()[-3000:] if log.exists() else ""


def _asked(plan: Plan, row: int) -> int:
    """The first row that asks what this row asks."""
    return row - 7 if plan.dedupe and row % 10 >= 7 else row


def _line(plan: Plan, row: int) -> dict[str, Any]:
    asked = _asked(plan, row)
    words = thread_job.REFUSED if asked in plan.refused else "is plain"
    words = thread_job.POISON if asked in plan.bad else words
    body = {"messages": [{"role": "user", "content": f"prompt {asked} {words}"}], "max_tokens": 4}
    return {"custom_id": f"row-{row}", "method": "POST", "url": "/v1/chat/completions", "body": body}


class FailedError(AssertionError):
    """A run did not end as it must."""


def run_plan(plan: Plan, folder: Path, store_url: str) -> Tally:
    """Run a plan, and check what it came to.

    Raises:
        FailedError, AssertionError: it is not what it must be.
    """
    folder.mkdir()
    (folder / "tmp").mkdir()
    (folder / "history").mkdir()
    job, tally = Job(folder, plan, store_url), Tally(runs=1)
    for fault in plan.faults:
        ended = _disturbed(job, fault)
        tally.fired[ended] += 1
        if ended == "not reached":
            break  # the job is done
    else:
        code = _wait(job.start(None, ttl=None))
        if code != 0:
            raise FailedError(f"the last driver ended with {code}\n{job.said()}")
    if plan.dedupe:
        _compare(job)
    figures = check_history(folder / "history", store_url, job.name, job.output)
    _check(job)
    tally.acknowledged, tally.recomputed = figures.acknowledged, figures.recomputed
    return tally


def _disturbed(job: Job, fault: Fault) -> str:
    """One driver with one fault; what came of it."""
    pid = job.start(fault, lost=job.plan.lost, ttl=_TTL if fault.action == "overtaken" else None)
    code = _wait(pid, stopped=True)
    if code == -signal.SIGSTOP and fault.action == "stall":
        time.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
        code = _wait(pid)
        if code != 0:
            raise FailedError(f"after a stall it ended with {code}\n{job.said()}")
        return "stall"
    if code == -signal.SIGSTOP:
        return _overtaken(job, pid)
    if code == -signal.SIGKILL and fault.action == "kill":
        return "kill"
    if code == 1 and fault.action == "raise" and "TriggeredError" in job.said():
        return "raise"
    if code != 0:
        raise FailedError(f"{fault}: it ended with {code}\n{job.said()}")
    return "raise, borne" if fault.action == "raise" and "TriggeredError" in job.said() else "not reached"


def _overtaken(job: Job, old: int) -> str:
    """Its successor runs while it stands still; then it goes on, and must change nothing."""
    time.sleep(1.2 * _TTL)
    done = job.is_completed()  # the old one had only to say so
    new = job.start(None, ttl=None)
    try:
        over = _wait(new, seconds=3.0, missing=True)  # it may wait for a lock that the old one holds
    finally:
        os.kill(old, signal.SIGCONT)
    if over is None:
        over = _wait(new)
    if over != 0:
        raise FailedError(f"the successor ended with {over}\n{job.said()}")
    code = _wait(old)
    if code == 0 and not done:
        raise FailedError(f"the one that was overtaken believes that it has done the job\n{job.said()}")
    return "overtaken"


def _wait(pid: int, *, seconds: float = SECONDS, stopped: bool = False, missing: bool = False) -> Any:
    """The exit code of a process, negative for a signal; None where it may be ``missing``, and is."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while True:
        found, status = os.waitpid(pid, os.WNOHANG | (os.WUNTRACED if stopped else 0))
        if found and os.WIFSTOPPED(status):
            return -signal.SIGSTOP
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            if missing:
                return None
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise FailedError(f"it did not end within {seconds:.0f} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _check(job: Job) -> None:
    """Rows, files and the store, and that nothing is left."""
    plan = job.plan
    asked = {row: _asked(plan, row) for row in range(plan.rows)}
    refused = [row for row in asked if asked[row] in plan.refused]
    bad = [row for row in asked if asked[row] in plan.bad]
    answered = sorted(set(asked) - {*bad, *refused})
    lines = {name: (job.output / name).read_text().splitlines() for name in FILES}
    ids = [json.loads(line)["custom_id"] for line in lines["output.jsonl"]]
    assert ids == [f"row-{row}" for row in answered], "output differs"
    texts = {json.loads(line)["custom_id"]: json.loads(line) for line in lines["errors.jsonl"]}
    assert sorted(texts) == sorted(f"row-{row}" for row in {*bad, *refused}), "errors differ"
    for row in set(bad) - set(refused):
        error = texts[f"row-{row}"]["error"]
        assert error["code"] == "poison", f"row {row} is {error}"
    with open_store(job.store_url, create=False) as store:
        found, shards, attempts = store.get_job(job.name), store.shards(job.name), store.attempts(job.name)
        places = {row.index: row.shard for page in store.outcomes(job.name) for row in page}
    computed = [index for index, shard in places.items() if shard != FOLLOWED]
    assert computed == [row for row in asked if asked[row] == row], "others were computed than should be"
    assert found.state is JobState.COMPLETED, found.state
    assert (found.driver, found.driver_until) == (None, None), "the driver's lease is left"
    assert {shard.state for shard in shards} <= {ShardState.DONE, ShardState.SPLIT}
    assert {(shard.owner, shard.lease_until, shard.replica) for shard in shards} == {(None, None, None)}
    assert [attempt for attempt in attempts if attempt.cause is None] == [], "an attempt is left open"
    left = {path.name for path in job.output.rglob("*") if path.is_file()}
    spools = {name for name in left if name.startswith("requests-")}
    odd = left - spools - {*FILES, "report.html", "owner.json"}
    assert not odd, f"files are left: {odd}"
    epochs = {re.split("[-.]", name)[1] for name in spools}
    assert len(epochs) == 1, f"spools are left: {spools}"
    assert list((job.folder / "tmp").iterdir()) == [], "temporary files are left"


def _compare(job: Job) -> None:
    """Each row computed by itself, by an undisturbed job, gives the same files."""
    alone = job.folder / "alone"
    given = job.given() | {"output": str(alone), "store_url": f"sqlite:///{alone}.db", "dedupe": False}
    (job.folder / "history-alone").mkdir()
    kept = {
        history.FOLDER_VARIABLE: str(job.folder / "history-alone"),
        "TMPDIR": str(job.folder / "tmp"),
    }
    code = _wait(fork_job(given, kept, job.folder / "log-alone"))
    assert code == 0, f"the job without dedupe ended with {code}"
    for name in FILES:
        assert (job.output / name).read_bytes() == (alone / name).read_bytes(), (
            f"{name} differs without dedupe"
        )


# -- many runs ----------------------------------------------------------------------------------------


def _lane(numbers: Sequence[int], seed: int, kept: str, postgres: str, dedupe: bool, lane: int) -> Tally:
    """Runs one after the other, in a process of their own."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="dray-swarm-", dir=_quick_folder()) as scratch:
        import_all(Path(scratch) / "first")
        began = time.monotonic()
        for number in numbers:
            plan, folder = plan_of(seed, number, dedupe=dedupe), Path(scratch) / str(number)
            url = postgres if plan.postgres else f"sqlite:///{folder / 'jobs.db'}"
            try:
                tally.add(run_plan(plan, folder, url))
            except Exception as error:  # noqa: BLE001  counted, told, and the folder is kept
                tally.runs += 1
                tally.failures.append(f"{plan}: {error}")
                print(f"FAILED {plan}\n{error}", flush=True)
                shutil.copytree(folder, Path(kept) / str(number), dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            if tally.runs % 100 == 0:
                rate = tally.runs / (time.monotonic() - began)
                print(f"lane {lane}: {tally.line}; {rate:.1f} runs/s", flush=True)
    return tally


def _quick_folder() -> str | None:
    """Memory, where there is room: thousands of small databases would wait for the disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _parts(runs: int, first: int, lanes: int) -> Iterator[range]:
    for lane in range(lanes):
        yield range(first + lane, first + runs, lanes)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--dedupe", action="store_true", help="rows repeat, and are computed once")
    parser.add_argument("--kept", default="out/swarm", help="where the files of failed runs are kept")
    return parser.parse_args(arguments)


def main() -> int:
    """Run, print, and return 1 if any run failed."""
    given = parse()
    print(f"seed {given.seed}", flush=True)
    tally = Tally()
    with ExitStack() as held:
        server = held.enter_context(PostgresServer())
        url = server.url(server.create_database())
        with open_store(url):
            pass  # its tables
        lanes = held.enter_context(ProcessPoolExecutor(given.lanes, get_context("fork")))
        parts = list(_parts(given.runs, given.first, given.lanes))
        futures = [
            lanes.submit(_lane, part, given.seed, given.kept, url, given.dedupe, lane)
            for lane, part in enumerate(parts)
        ]
        for future in futures:
            tally.add(future.result())
    print(tally.line)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
