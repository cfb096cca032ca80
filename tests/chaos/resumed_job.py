"""A job on threads that is killed or stopped, and run again, and what must hold then.

Each run is one of ``tests.chaos.thread_job.py``, in a process of its own.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from dray.job.beginning.opening import open_job
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.store import JobState, ShardState, open_store
from dray.triggers import Point
from tests.chaos.thread_job import IMAGES, JOB, POISON, REFUSED, settings_of
from tests.chaos.warm import WarmProcess, WarmServer
from tests.support.history import check_history
from tests.support.s3_writes import uploads

ROWS = 200
BAD_LINES = {7: "this is no JSON", 93: '{"custom_id": "row-93"}'}
REFUSED_ROW, POISON_ROW, MISSING_ROW = 60, 130, 45
PICTURES = 3
FILES = ("output.jsonl", "errors.jsonl")
_IN_TRANSACTIONS = (
    "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
    "and backend_type = 'client backend' and state <> 'idle'"
)


def write_lines(path: Path) -> None:
    """Write the job's input: 200 lines. Two are no valid request, and three in ten ask what another asks.

    Some name an image below a folder beside it, and one names an image that is not there.
    """
    path.write_text("".join(f"{_line(number)}\n" for number in range(ROWS)))
    images = path.with_name(IMAGES)
    images.mkdir()
    for number in range(PICTURES):
        (images / f"{number}.png").write_bytes(b"\x89PNG %d" % number)


def _line(number: int) -> str:
    if number in BAD_LINES:
        return BAD_LINES[number]
    asked = leader_of(number)
    words = {REFUSED_ROW: REFUSED, POISON_ROW: POISON}.get(asked, "is plain")
    text = f"prompt {asked} {words}"
    name = "gone.png" if asked == MISSING_ROW else f"{asked % PICTURES}.png"
    image = {"type": "image_url", "image_url": {"url": name}}
    content: object = [image, {"type": "text", "text": text}] if asked % 5 == 0 else text
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
    line = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line)


def leader_of(number: int) -> int:
    """The first row that asks the same; itself for most."""
    return number - 7 if number % 10 >= 7 and number not in BAD_LINES else number


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
        given = {"input": str(inputs), "output": output, "store_url": store_url, "dedupe": True, **settings}
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
        return sorted(re.sub(r"-[0-9a-f]{12}/requests-\d+\b", "/requests", name) for name in found)

    def written(self) -> list[object]:
        """All that a driver or a worker writes: rows, shards, attempts, charges, and files by name."""
        with open_store(self.store_url, create=False) as store:
            rows = store.done_indexes(JOB, range(ROWS))
            return [rows, store.shards(JOB), store.attempts(JOB), store.charges(JOB), self.published()]

    def takes_writes(self) -> bool:
        """Whether no process holds a lock that keeps the others from the store."""
        if not self.store_url.startswith("sqlite"):
            with psycopg.connect(self.store_url) as connection:
                return connection.execute(_IN_TRANSACTIONS).fetchall() == []
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


def stopped_job(
    make_job: Callable[..., ThreadJob], point: Point, count: int
) -> tuple[ThreadJob, WarmProcess]:
    """A job whose driver stands still at a point, and holds no lock of the store.

    All threads of a process stop together. One of them may be in a transaction, and keep SQLite's only lock,
    or the job's row in PostgreSQL: what then follows is of tests/integration/store. Such a job is left, and
    another one begun.
    """
    for _ in range(20):
        job = make_job(driver_ttl=1.0, lanes=1)
        counted = job.triggers("old")
        driver = job.start(f"{point}:{count}=stop", counted)
        try:
            wait_until_stopped(driver, counted / f"{point}.fired", job.said)
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


def wait_until_stopped(process: WarmProcess, fired: Path, said: Callable[[], str]) -> None:
    """Until the process stands still at its point, which has written the file ``fired``."""
    deadline = time.monotonic() + 60
    state = ""
    while state != "T" or not fired.exists():
        assert process.poll() is None, f"it ended before the point\n{said()}"
        assert time.monotonic() < deadline, "it did not come to the point"
        time.sleep(0.02)
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended: the next look says so
            state = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
