"""Compiles grammars one by one in processes with limits, and says which came through. A program of its own.

A schema of 4 KB can keep xgrammar busy for minutes, take all memory, or overflow its stack, and native code
cannot be stopped in a thread. So this process reads the tokenizer once, and forks for each grammar a child
that may use a number of seconds of processor time and of bytes. Nothing but the verdict comes back.

Lines of JSON on stdin: the set-up (``tokenizer``, ``seconds``, ``bytes``, ``children``), then grammars
(``id``, ``kind``, ``text``, ``any_whitespace``, ``separators``). Lines on stdout: ``id``, ``verdict``, which
is ``ok``, ``time`` or ``memory``. A grammar with a fault is ``ok`` here: vLLM says what is wrong with it.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.01  # between looks at the children
_WALL_FACTOR = 20  # a child that gets no processor is given up after so many times its seconds
_NO_MEMORY = 3  # exit status


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
        compiler.compile_structural_tag(text)


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
        self.running: dict[int, tuple[int, float]] = {}  # pid -> id of the grammar, start
        gc.collect()
        gc.freeze()  # pages that no child touches are shared

    def start(self) -> None:
        """Fork for as many grammars as may run."""
        while self.waiting and len(self.running) < self._children:
            order = self.waiting.popleft()
            pid = os.fork()
            if pid == 0:
                self._child(order)
            self.running[pid] = order["id"], time.monotonic()

    def _child(self, order: dict[str, Any]) -> None:
        status = 0
        try:
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
        for pid, (number, began) in list(self.running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done and time.monotonic() - began > self._seconds * _WALL_FACTOR:
                os.kill(pid, signal.SIGKILL)
                done, status = os.waitpid(pid, 0)
            if done:
                del self.running[pid]
                found.append((number, _verdict(status)))
        return found

    def kill(self) -> None:
        """Nobody waits for them any more."""
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)


def _verdict(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "time" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "memory"
    return "memory" if os.WEXITSTATUS(status) == _NO_MEMORY else "ok"


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main() -> None:
    """Serve until stdin ends."""
    setup, _, rest = _read_line()
    compilers = Compilers(json.loads(setup))
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
                compilers.kill()
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
