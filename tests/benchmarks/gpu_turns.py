"""Engines in processes of their own, all of them up, of which one works at a time."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from tests.benchmarks.gpu_engines import GpuWork
from tests.benchmarks.processes import RunError, last_words

_MODULE = "tests.benchmarks.gpu_engines"


class TurnTaker:
    """One engine (``limit`` or ``replica``). It begins to start at once.

    ``stem``: of the files beside it, with what it is to do and what it says on stderr.
    """

    def __init__(self, name: str, work: GpuWork, stem: Path, environment: Mapping[str, str]) -> None:
        self._log = stem.with_suffix(".log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, name, work.save(stem.with_suffix(".json"))],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # ended as a group, with its engine's core
            )
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def started(self, seconds: float) -> dict[str, float]:
        """Wait until it can work: the seconds of its start, by part.

        Raises:
            RunError: it ended, or is not there after ``seconds``.
        """
        found: dict[str, float] = self._next(seconds)["start"]
        return found

    def rate(self, workload: str, seed: int, seconds: float) -> float:
        """Rows a second of one turn.

        Raises:
            RunError: it ended, or has not answered after ``seconds``.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the next line says what it said last
            self._process.stdin.write(orjson.dumps({"workload": workload, "seed": seed}).decode() + "\n")
            self._process.stdin.flush()
        found = self._next(seconds)
        return float(found["rows"] / found["seconds"])

    def end(self) -> None:
        """Kill it: an engine that has been measured need not end in order."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._said.put(orjson.loads(line))
        self._said.put(None)

    def _next(self, seconds: float) -> dict[str, Any]:
        try:
            found = self._said.get(timeout=seconds)
        except queue.Empty:
            raise RunError(f"nothing after {seconds:.0f} s; {self._last_words()}") from None
        if found is None:
            raise RunError(f"it ended; {self._last_words()}")
        return found

    def _last_words(self) -> str:
        return last_words(self._log.read_text(errors="replace").splitlines())
