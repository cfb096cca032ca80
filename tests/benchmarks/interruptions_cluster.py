"""The cluster that loses nodes: one stable head, nodes with one (pretended) GPU each, and a killer.

The head has no CPUs, as Ray advises for big clusters, so nothing that computes is where nobody kills. All
others have four (logical) CPUs and a GPU: room for one engine, and for tasks beside it. Ray's settings are
its defaults, but for workers' niceness: at its 15 they would get nothing on a machine where others work too.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.raylets import Raylets, Shape

ADD_AFTER = 2.0  # seconds from a kill to the start of a new node
_SHAPE = Shape(head_cpus=0, cpus=4, gpus=1)


class SpotCluster(Raylets):
    """A head and ``nodes`` more. ``alive`` are the numbers of those; the head is 0, and stays."""

    def __init__(self, folder: Path, nodes: int, environment: Mapping[str, str]) -> None:
        known = {**environment, "RAY_worker_niceness": "0"}
        super().__init__(folder, nodes + 1, known, _SHAPE, log=folder / "cluster.log")
        self.alive = list(range(1, nodes + 1))

    @property
    def address(self) -> str:
        """Where it is joined."""
        assert self.settings.address is not None
        return self.settings.address

    def add(self, environment: Mapping[str, str] | None = None) -> str:
        """One more node; its id."""
        node = super().add(environment)
        self.alive.append(len(self.nodes) - 1)
        return node

    def kill(self, number: int) -> None:
        """End a node's raylet, with SIGKILL; what ran there ends with it."""
        self.alive.remove(number)
        super().kill(number)

    def engines(self, number: int, trace: Path) -> list[int]:
        """The processes that write into ``trace`` and run on this node."""
        found = []
        for pid in traced_pids(trace):
            with suppress(psutil.Error):
                raylet = psutil.Process(pid).parent()
                if raylet is not None and self.nodes[number] in " ".join(raylet.cmdline()):
                    found.append(pid)
        return found


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One node lost: the ``engines`` on it, and the ``rows`` that these had admitted in their time."""

    seconds: float  # since the first row was computed
    node: int
    engines: int
    rows: int


class Killer(threading.Thread):
    """Kills a node every so often from the first row on, and adds one ``ADD_AFTER`` seconds later.

    The order of nodes comes from ``seed`` alone, so two jobs of equal length lose the same ones. ``every``
    None: it looks when the first row comes, and kills nobody.
    """

    def __init__(self, cluster: SpotCluster, trace: Path, *, every: float | None, seed: int) -> None:
        super().__init__(name="killer", daemon=True)
        self._cluster = cluster
        self._trace = trace
        self._every = every
        self._rng = random.Random(seed)
        self._ended = threading.Event()
        self.first: float | None = None  # time.monotonic() of the first row in an engine
        self.kills: list[Kill] = []
        self.error: Exception | None = None

    def stop(self) -> None:
        """Stop killing; again does nothing."""
        self._ended.set()
        if self.ident is not None:
            self.join(60)

    def end(self) -> None:
        """Stop killing; raises what went wrong."""
        self.stop()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Kill until the end."""
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001  thread edge: handed to whoever waits
            self.error = error

    def _watch(self) -> None:
        while not traced_rows(self._trace):
            if self._ended.wait(0.1):
                return
        self.first = time.monotonic()
        if self._every is not None:
            self._kill_them(self.first, self._every)

    def _kill_them(self, began: float, every: float) -> None:
        while not self._ended.wait(max(began + (len(self.kills) + 1) * every - time.monotonic(), 0)):
            number = self._rng.choice(self._cluster.alive)
            engines = self._cluster.engines(number, self._trace)
            kill = Kill(
                seconds=round(time.monotonic() - began, 2),
                node=number,
                engines=len(engines),
                rows=sum(
                    len(_lines(file)) for pid in engines for file in self._trace.rglob(f"*-{pid}.trace")
                ),
            )
            self._cluster.kill(number)
            self.kills.append(kill)
            if self._ended.wait(ADD_AFTER):
                return
            self._cluster.add()


def traced_rows(trace: Path) -> list[int]:
    """Every admission of a row to an engine, in no order."""
    return [row for file in trace.rglob("*.trace") for row in _lines(file)]


def last_admission(trace: Path) -> float:
    """When a row last entered an engine, as ``time.monotonic()`` counts; now, when none did."""
    since = [time.time() - file.stat().st_mtime for file in trace.rglob("*.trace")]
    return time.monotonic() - min(since, default=0.0)


def shares(trace: Path) -> dict[str, int]:
    """How many rows each process admitted."""
    return {file.stem: len(_lines(file)) for file in sorted(trace.rglob("*.trace"))}


def traced_pids(trace: Path) -> set[int]:
    """The processes that admitted rows: file names end with their ids."""
    return {int(file.stem.rsplit("-", 1)[1]) for file in trace.rglob("*.trace")}


def _lines(file: Path) -> list[int]:
    """The rows of a process that it has written down, ``admit INDEX`` a line; the last may be half there."""
    lines = file.read_text().split("\n")[:-1]
    return [int(line.split()[1]) for line in lines if line.startswith("admit ")]
