"""The ``dray`` command as its users run it, in a process group of its own, and all that it starts.

Every process of a run inherits a mark in its environment, whatever session or parent it takes. Ray's workers
write their titles over it, so descendants are noted by their parents as well, for as long as those live.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dray.cli.server import PrefectServer
from tests.support.prefect_database import put_database

ROOT = Path(__file__).parents[2]
MARK = "DRAY_TESTS_MARK"
_NOTE_EVERY = 0.3  # seconds
CANARY = "canary-7f3a-prompt"  # stands in every prompt: nothing that people read may show it


@functools.cache
def prefect_api() -> str:
    """The URL of one Prefect server for all tests of this process: each run skips its start."""
    put_database(Path(os.environ["PREFECT_HOME"]))
    server = PrefectServer()
    server.start()
    atexit.register(server.stop)
    server.wait()
    return server.url


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        """The object on the last line of stdout."""
        found: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return found


@dataclass(kw_only=True)
class Command:
    """One ``dray`` process, started at once: of this checkout, or another ``program``."""

    arguments: Sequence[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    own_server: bool = False
    program: Sequence[str] = (sys.executable, "-m", "dray.cli")

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mark = uuid.uuid4().hex
        self._seen: dict[int, str] = {}  # pid -> start time
        self._began = self._noted = time.monotonic()
        inherited = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
        known = {} if self.own_server else {"PREFECT_API_URL": prefect_api()}
        with (self.folder / "stdout").open("wb") as out, (self.folder / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                [*self.program, *self.arguments],
                env={**inherited, **known, **self.environment, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT if self.program == Command.program else self.folder,
                start_new_session=True,
            )
        atexit.register(self.kill9)  # whatever becomes of the test

    def wait(self, timeout: float = 300) -> Ended:
        """Wait for its end; a command that takes longer is killed and fails the test."""
        deadline = time.monotonic() + timeout
        while (code := self.process.poll()) is None:
            if time.monotonic() > deadline:
                self.kill9()
                raise AssertionError(f"still running after {timeout:.0f} s:\n{self.stderr()[-3000:]}")
            self._note_now_and_then()
            time.sleep(0.05)
        return Ended(
            code=code,
            stdout=(self.folder / "stdout").read_text(),
            stderr=self.stderr(),
            seconds=time.monotonic() - self._began,
        )

    def stderr(self) -> str:
        """What it has said so far."""
        return (self.folder / "stderr").read_text()

    def interrupt(self) -> None:
        """Ctrl-C: a terminal signals the whole foreground process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill9(self) -> None:
        """SIGKILL to the whole process group."""
        if self.process.returncode is not None:
            return
        self.note_processes()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def until(self, condition: Callable[[], bool], timeout: float = 180, what: str = "the moment") -> None:
        """Wait for ``condition`` while the command runs."""
        deadline = time.monotonic() + timeout
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before {what}:\n{self.stderr()}")
            if time.monotonic() > deadline:
                self.kill9()
                raise AssertionError(f"{what} did not come within {timeout:.0f} s:\n{self.stderr()}")
            self._note_now_and_then()
            time.sleep(0.02)

    def _note_now_and_then(self) -> None:
        """A look through /proc takes 5 ms and more: not in each turn of a loop that waits."""
        if time.monotonic() - self._noted > _NOTE_EVERY:
            self.note_processes()
            self._noted = time.monotonic()

    def note_processes(self) -> dict[int, str]:
        """The live processes of this run, itself included: pid and command line."""
        found = _processes()
        known = {pid for pid, process in found.items() if self._seen.get(pid) == process.started}
        known |= {pid for pid in found if _has_mark(pid, self.mark)}
        while more := {pid for pid, process in found.items() if process.parent in known} - known:
            known |= more
        self._seen |= {pid: found[pid].started for pid in known}
        return {pid: _title(pid) for pid in known}

    def assert_nothing_left(self, seconds: float = 15) -> None:
        """All processes of the run are gone, at the latest after ``seconds``; leftovers are ended then."""
        deadline = time.monotonic() + seconds
        while left := self.note_processes():
            if time.monotonic() > deadline:
                for pid in left:
                    _end(pid)
                raise AssertionError(f"still running {seconds:.0f} s after the end: {left}")
            time.sleep(0.1)


def dray(folder: Path, *arguments: str, timeout: float = 300, **options: Any) -> Ended:
    """Run one command to its end."""
    return Command(arguments=arguments, folder=folder / uuid.uuid4().hex[:8], **options).wait(timeout)


def run_arguments(
    inputs: Path,
    output: Path,
    *more: str,
    job_id: str = "job",
    engine: str = "simulated",
    model: str = "simulated",
    settings: Iterable[str] = (),
    store: str = "",
) -> list[str]:
    """``dray run`` with ``settings`` as engine arguments; SQLite in the output folder without ``store``."""
    arguments = ["run", str(inputs), "--model", model, "--output", str(output), "--job-id", job_id]
    arguments += ["--engine", engine, "--json"]
    for pair in settings:
        arguments += ["--engine-arg", pair]
    if store:
        arguments += ["--store", store]
    return [*arguments, *more]


def write_requests(
    path: Path, rows: int, *, words: Mapping[int, str] | None = None, max_tokens: int = 8, **sampling: float
) -> Path:
    """``rows`` chat requests in the OpenAI batch format, with the canary in each prompt.

    ``words``: what else stands in the prompts of rows. ``sampling``: more fields of each body.
    """
    known = words or {}
    with path.open("w") as file:
        for number in range(rows):
            content = f"{CANARY} number {number} {known.get(number, '')}".rstrip()
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": content}],
                "max_tokens": max_tokens,
                **sampling,
            }
            line = {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            file.write(json.dumps(line) + "\n")
    return path


def committed(output: Path, job_id: str = "job", store: str | None = None) -> int:
    """Rows with an outcome so far; 0 while there is no job yet."""
    from dray.errors import DrayError
    from dray.store import open_store

    url = store or f"sqlite:///{output / 'dray.db'}"
    try:
        with open_store(url, create=False) as opened:
            counts = opened.counts(job_id)
    except DrayError:
        return 0
    return counts.done + counts.failed


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    started: str  # clock ticks since boot: with the pid, this process and no other


def _processes() -> dict[int, _Process]:
    """All live processes of the machine, by pid (proc(5), fields 3, 4 and 22 of stat)."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if fields[0] != "Z":
                    found[int(entry.name)] = _Process(int(fields[1]), fields[19])
    return found


def _has_mark(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # it ended meanwhile, or belongs to another user


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()[:160]
    except OSError:
        return ""


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
