"""The cluster that loses nodes: one stable head, nodes with one (pretended) GPU each, and a killer.

::

    python -m tests.benchmarks.interruptions_cluster FOLDER NODES

serves as ``tests.support.raylets`` does, with other nodes: the head has no CPUs, as Ray advises for big
clusters, so nothing that computes is where nobody kills. All others have four (logical) CPUs and a GPU: room
for one engine, and for tasks beside it. Ray's settings are its defaults, but for workers' niceness: at its 15
they would get nothing on a machine where others work too.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.cluster.ray_private import enable_token_auth
from dray.processes import no_survivors

ADD_AFTER = 2.0  # seconds from a kill to the start of a new node
_HEAD: dict[str, Any] = {"num_cpus": 0, "resources": {"dray_stable": 10_000}}
_NODE: dict[str, Any] = {"num_cpus": 4, "num_gpus": 1}


class SpotCluster:
    """A head and ``nodes`` more. ``alive`` are the numbers of those; the head is 0, and stays.

    Raises:
        RuntimeError: its process ended; the message has what it said last.
    """

    def __init__(self, folder: Path, nodes: int, environment: Mapping[str, str]) -> None:
        self._log = folder / "cluster.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks.interruptions_cluster", str(folder), str(nodes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **environment, "RAY_worker_niceness": "0"},
                start_new_session=True,  # a Ctrl-C is for the benchmark, which then ends the cluster in order
            )
        started = self._answer()
        self.address: str = started["address"]
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": started["token"]}
        self._nodes: list[str] = started["nodes"]
        self.alive = list(range(1, len(self._nodes)))

    def add(self) -> None:
        """One more node."""
        self._nodes.append(self._command({"add": True})["node"])
        self.alive.append(len(self._nodes) - 1)

    def kill(self, number: int) -> None:
        """End a node's raylet, with SIGKILL; what ran there ends with it."""
        self.alive.remove(number)
        self._command({"kill": number})

    def stop(self) -> None:
        """End the cluster."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def engines(self, number: int, trace: Path) -> list[int]:
        """The processes that write into ``trace`` and run on this node."""
        node = self._nodes[number].encode()
        found = []
        for pid in traced_pids(trace):
            raylet = _parent(pid)
            if raylet is not None and node in _command_line(raylet):
                found.append(pid)
        return found

    def _command(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text().strip().splitlines()[-1:]
            raise RuntimeError(
                f"the cluster's process ended ({self._process.wait(10)}); it said last: {said}"
            )
        found: dict[str, Any] = json.loads(line)
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


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def main() -> None:
    """Serve until stdin ends."""
    from ray.cluster_utils import Cluster

    folder, count, token = Path(sys.argv[1]), int(sys.argv[2]), secrets.token_hex(32)
    enable_token_auth(token)
    answers = sys.stdout
    sys.stdout = sys.stderr
    cluster = Cluster(shutdown_at_exit=False)
    nodes: list[Any] = []

    def add(**resources: Any) -> Any:
        cache = {"DRAY_MODEL_CACHE": str(folder / f"cache-{len(nodes)}")}
        nodes.append(cluster.add_node(include_dashboard=False, env_vars=cache, **resources))
        return nodes[-1]

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    for resources in (_HEAD, *[_NODE] * count):
        add(**resources)
    cluster.wait_for_nodes()
    answer(address=cluster.address, token=token, nodes=[node.node_id for node in nodes])
    with no_survivors():
        for line in sys.stdin:
            command = json.loads(line)
            if "add" in command:
                answer(node=add(**_NODE).node_id)
            else:
                cluster.remove_node(nodes[command["kill"]], allow_graceful=False)
                answer(killed=command["kill"])
        cluster.shutdown()


if __name__ == "__main__":
    main()
