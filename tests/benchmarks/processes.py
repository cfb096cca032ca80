"""Run one measured thing in a process of its own: wall clock, peak memory, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import orjson

_SAMPLE_SECONDS = 0.5
_LAST_LINES = 30  # of a process that failed
_GRACE_SECONDS = 5.0  # what a process tree may take to vanish after its root has ended


class RunError(Exception):
    """A measured process did not do its work; the message ends with what it said last."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of output, and the seconds from the start of the process until it came."""

    seconds: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a process came to.

    ``seconds`` is its wall clock, ``peak`` the largest resident size of the process itself, and
    ``others`` that of its descendants by what they are called, all in bytes. ``processor`` has, for each
    process, the command lines that it had and its processor seconds, as last seen. ``left`` counts
    descendants that outlived it by five seconds; they have been killed.
    """

    code: int
    seconds: float
    out: list[Line]
    err: list[Line]
    peak: int
    others: dict[str, int]
    left: int
    processor: list[tuple[str, float]]

    def result(self) -> dict[str, object]:
        """The JSON object on stdout's last line that starts as one: an engine core may speak after it.

        Raises:
            RunError: the process failed, or there is none.
        """
        if self.code != 0:
            raise RunError(f"exit code {self.code}; {self._last_words()}")
        said = [line.text for line in self.out if line.text.startswith("{")]
        try:
            return dict(orjson.loads(said[-1]))
        except (IndexError, orjson.JSONDecodeError):
            raise RunError(f"no JSON on stdout; {self._last_words()}") from None

    def _last_words(self) -> str:
        return last_words([line.text for line in self.err])


def last_words(lines: Sequence[str]) -> str:
    """The last lines of a process that failed, without the hundreds that nanobind says of leaks."""
    said = [line for line in lines if " leaked " not in line]
    return "it said last:\n" + "\n".join(said[-_LAST_LINES:])


def run(
    command: Sequence[str | Path],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    look_every: float = _SAMPLE_SECONDS,
) -> Finished:
    """Run ``command`` to its end, and look at its processes every so many seconds.

    Raises:
        RunError: it took longer than ``timeout`` seconds; it and its descendants have been killed.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C reaches this program alone, which then ends the tree
    )
    tree = _Tree(process.pid)
    out, err = _Reader(process.stdout, began), _Reader(process.stderr, began)
    try:
        code = _wait(process, tree, began + timeout, look_every)
        seconds = time.monotonic() - began
        left = tree.remaining(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        raise RunError(f"still running after {timeout:.0f} s") from None
    finally:
        tree.kill()
        process.wait()
    return Finished(
        code=code,
        seconds=seconds,
        out=out.lines(),
        err=err.lines(),
        peak=tree.peak,
        others=tree.others,
        left=left,
        processor=list(tree.processor.values()),
    )


def _wait(process: subprocess.Popen[bytes], tree: _Tree, deadline: float, look_every: float) -> int:
    """Wait for the end, looking at the tree now and then.

    The wait itself notices the end at once, so that sampling does not lengthen what is measured.
    """
    while True:
        tree.look()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(look_every, max(deadline - time.monotonic(), 0.01)))
        if time.monotonic() > deadline:
            tree.look()
            raise subprocess.TimeoutExpired(process.args, 0)


class _Reader:
    """Drains a pipe and notes when each line came."""

    def __init__(self, pipe: IO[bytes] | None, began: float) -> None:
        assert pipe is not None
        self._lines: list[Line] = []
        self._thread = threading.Thread(target=self._drain, args=(pipe, began), daemon=True)
        self._thread.start()

    def lines(self) -> list[Line]:
        """All lines; waits a little for the last ones."""
        self._thread.join(2)
        return list(self._lines)

    def _drain(self, pipe: IO[bytes], began: float) -> None:
        for line in pipe:
            text = line.decode(errors="replace").rstrip("\n")
            self._lines.append(Line(seconds=time.monotonic() - began, text=text))


class _Tree:
    """A process and all its descendants, remembered even when their parents have gone."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._known: dict[int, str] = {root: _start_time(root)}  # start times tell a pid used again
        self.peak = 0
        self.others: dict[str, int] = {}
        self.processor: dict[tuple[int, str], tuple[str, float]] = {}

    def look(self) -> None:
        """Note new descendants, and the peak memory and processor time of each process."""
        children: dict[int, list[int]] = {}
        for pid, parent in _parents():
            children.setdefault(parent, []).append(pid)
        queue = [pid for pid, started in self._known.items() if _start_time(pid) == started]
        while queue:
            for pid in children.get(queue.pop(), ()):
                if pid not in self._known:
                    self._known[pid] = _start_time(pid)
                    queue.append(pid)
        for pid, started in self._known.items():
            if started and _start_time(pid) == started:
                self._note_memory(pid)
                self._note_processor(pid, started)

    def remaining(self, seconds: float) -> int:
        """How many descendants are still there after at most ``seconds``."""
        deadline = time.monotonic() + seconds
        while (count := len(self._alive())) and time.monotonic() < deadline:
            time.sleep(0.05)
        return count

    def kill(self) -> None:
        """Kill what is left of it, by recorded process id."""
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _alive(self) -> list[int]:
        return [pid for pid, started in self._known.items() if started and _start_time(pid) == started]

    def _note_processor(self, pid: int, started: str) -> None:
        titles, _ = self.processor.get((pid, started), ("", 0.0))
        title = _command_line(pid)
        titles = titles if title in titles else f"{titles}\n{title}"
        self.processor[pid, started] = titles, _processor_seconds(pid)

    def _note_memory(self, pid: int) -> None:
        size = _peak_memory(pid)
        if pid == self._root:
            self.peak = max(self.peak, size)
        else:
            name = _name(pid)
            self.others[name] = max(self.others.get(name, 0), size)


def _parents() -> list[tuple[int, int]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                found.append((int(entry.name), int(fields[1])))
    return found


def _start_time(pid: int) -> str:
    """The moment the process started, in the kernel's ticks; empty for one that has ended."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] != "Z" else ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on, see proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _processor_seconds(pid: int) -> float:
    """User and system time so far."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _peak_memory(pid: int) -> int:
    """VmHWM: the largest resident size so far, in bytes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return int(line.split()[1]) * 1024


def _name(pid: int) -> str:
    """What the process calls itself, short: Ray's workers put their task's or actor's name there."""
    words = _command_line(pid).split()
    if not words:
        return "?"
    program = Path(words[0]).name
    if program.startswith("python") and len(words) > 1:
        program = Path(words[1] if words[1] != "-m" else words[2]).name
    return program[:40]


def resident(name: str) -> int:
    """Bytes of this process that are in memory (``VmRSS``), or were at most (``VmHWM``): proc(5)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) << 10


def forget_peak() -> None:
    """``VmHWM`` counts from here on."""
    Path("/proc/self/clear_refs").write_text("5")
