"""Compiles grammars one by one in processes with limits, and says which came through. A program of its own.

A schema of 4 KB can keep xgrammar busy for minutes, take all memory, or overflow its stack, and native code
cannot be stopped in a thread. So this process reads the tokenizer once, and forks for each grammar a child
that may use a number of seconds of processor time and of bytes. Nothing but the verdict comes back.

Lines of JSON on stdin: the set-up (``tokenizer``, ``seconds``, ``bytes``, ``children``), then grammars
(``id``, ``kind``, ``text``, ``any_whitespace``, ``separators``). Lines on stdout: ``id``, ``verdict``, which
is ``ok``, ``time``, ``memory``, or the name of the signal that ended the child. A grammar with a fault is
``ok`` here: vLLM says what is wrong with it.

The process dies with the thread that started it, and each child with the process. The process id of the
starter is the one argument.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.01  # between looks at the children
_WALL_FACTOR = 20  # a child that gets no processor is given up after so many times its seconds
_NO_MEMORY = 3  # exit status
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None  # found before any fork


def die_with(parent: int) -> None:
    """Have the kernel end this process when ``parent`` ends. Its parent, to the kernel, is the thread.

    The end of a pipe is seen late, and never where another process has inherited the pipe.
    """
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # the parent ended before the prctl call
        os._exit(1)


def compile_one(compiler: Any, order: dict[str, Any]) -> None:
    """Compile as vLLM's xgrammar backend does (``XgrammarBackend.compile_grammar``)."""
    kind, text = order["kind"], order["text"]
    if kind == "json":
        separators = order["separators"]
        compiler.compile_json_schema(
            text,
            any_whitespace=order["any_whitespace"],
            separators=tuple(separators) if separators else None,
        )
    elif kind == "lark":
        compiler.compile_lark(text)
    elif kind == "grammar":
        compiler.compile_grammar(text)
    elif kind == "regex":
        compiler.compile_regex(text)
    elif kind == "tag":
        compile_tag(compiler, text)


def compile_tag(compiler: Any, text: str) -> None:
    """Compile a structural tag, in either form; the one with ``structures`` is older."""
    import xgrammar

    tag = json.loads(text)
    if "structures" not in tag:
        compiler.compile_structural_tag(text)
        return
    items = [
        xgrammar.StructuralTagItem(begin=one["begin"], schema=json.dumps(one["schema"]), end=one["end"])
        for one in tag["structures"]
    ]
    compiler.compile_structural_tag(items, tag["triggers"])


@dataclass(frozen=True, slots=True)
class _Child:
    """A child at work: its grammar, and since when."""

    order: dict[str, Any]
    began: float


class Compilers:
    """The children at work, and the grammars that wait for one."""

    def __init__(self, setup: dict[str, Any]) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        self._tokenizer = xgrammar.TokenizerInfo.deserialize_json(setup["tokenizer"])
        self._seconds = int(setup["seconds"])
        self._bytes = int(setup["bytes"])
        self._children = int(setup["children"])
        self.waiting: deque[dict[str, Any]] = deque()
        self.running: dict[int, _Child] = {}  # by process id
        self._pid = os.getpid()
        gc.collect()
        gc.freeze()  # pages that no child touches are shared

    def start(self) -> None:
        """Fork for as many grammars as may run."""
        while self.waiting and len(self.running) < self._children:
            order = self.waiting.popleft()
            pid = os.fork()
            if pid == 0:
                self._child(order)
            self.running[pid] = _Child(order, time.monotonic())

    def _child(self, order: dict[str, Any]) -> None:
        status = 0
        try:
            die_with(self._pid)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (self._seconds, self._seconds + 1))
            limit = _address_space() + self._bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            compile_one(self._xgrammar.GrammarCompiler(self._tokenizer, max_threads=1), order)
        except MemoryError:
            status = _NO_MEMORY
        except BaseException as error:  # noqa: BLE001  vLLM compiles it again, and says what is wrong
            status = _NO_MEMORY if "alloc" in str(error) else 0
        finally:
            os._exit(status)

    def ended(self) -> list[tuple[int, str]]:
        """Ids and verdicts of the children that came to their end."""
        found = []
        for pid, child in list(self.running.items()):
            done, status, used = os.wait4(pid, os.WNOHANG)
            late = not done and time.monotonic() - child.began > self._seconds * _WALL_FACTOR
            if late:
                os.kill(pid, signal.SIGKILL)
                done, status, used = os.wait4(pid, 0)
            if not done:
                continue
            del self.running[pid]
            late = late or used.ru_utime + used.ru_stime >= self._seconds
            verdict = _verdict(status, late=late)
            if verdict == "SIGKILL" and not child.order.get("again"):
                # The kernel, short of memory, ends what it likes: one death is no proof against a grammar.
                self.waiting.append(child.order | {"again": True})
            else:
                found.append((child.order["id"], verdict))
        return found

    def kill(self) -> None:
        """Kill the children: the engine waits for no verdict any more."""
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)


def _verdict(status: int, *, late: bool) -> str:
    """What a child's end says. ``late``: it had used its time, so that the limit on that ended it."""
    if not os.WIFSIGNALED(status):
        return "memory" if os.WEXITSTATUS(status) == _NO_MEMORY else "ok"
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU or (late and number == signal.SIGKILL):
        return "time"
    return signal.Signals(number).name


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main() -> None:
    """Serve until stdin ends."""
    die_with(int(sys.argv[1]))
    setup, _, rest = _read_line()
    compilers = Compilers(json.loads(setup))
    try:
        _serve(compilers, rest)
    finally:  # also where stdout ends first
        compilers.kill()


def _serve(compilers: Compilers, rest: bytes) -> None:
    while True:
        lines = rest.split(b"\n")
        rest = lines.pop()
        compilers.waiting.extend(map(json.loads, lines))
        compilers.start()
        for number, verdict in compilers.ended():
            sys.stdout.write(json.dumps({"id": number, "verdict": verdict}) + "\n")
            sys.stdout.flush()
        compilers.start()
        ready, _, _ = select.select([0], [], [], _POLL_SECONDS if compilers.running else None)
        if ready:
            block = os.read(0, 1 << 20)
            if not block:
                return
            rest += block


def _read_line() -> tuple[bytes, bytes, bytes]:
    read = b""
    while b"\n" not in read:
        block = os.read(0, 1 << 20)
        if not block:
            raise SystemExit
        read += block
    return read.partition(b"\n")


if __name__ == "__main__":
    main()
