"""A Ray cluster of several nodes on this machine, in a process of its own.

::

    python -m tests.support.raylets FOLDER NODES [SHAPE]      the head and NODES - 1 more raylets

prints one line of JSON with the cluster's ``address``, its ``token`` and the ids of its ``nodes``, and ends
when its stdin does. Each node has a cache of models of its own, ``FOLDER/cache-N``. A line of JSON on stdin
is a command, answered by a line: ``{"add": {}}`` starts one more node, with these environment variables;
nodes that the cluster's own autoscaler started are named by their ids;
``{"kill": N}`` ends one by SIGKILL; ``{"kill": "gcs"}`` ends the control store alone, and leaves all raylets;
``{"drain": N, "seconds": S}`` has Ray drain one; ``{"signal": "STOP", "node": N}`` sends a signal to its
raylet and all that it started; ``{"dead": true}`` has Ray say which nodes it has found dead, and why.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO

import psutil

from dray.cluster import ClusterSettings
from dray.cluster.ray_private import Service, agents_on_demand, enable_token_auth, start_without
from dray.processes import no_survivors
from tests.support.autoscaling import VARIABLES, head_arguments
from tests.support.ray_workers import at_work


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What nodes are like, all numbers of a node; the head has no ``gpus``, which are pretended.

    ``stable`` is how much of ``dray_stable`` marks the head. ``impatient``: Ray calls a node dead that is
    silent for 2 s, not for a minute. ``light``: Ray's agents start only on nodes that ask them for something,
    which is for tests where nodes come and go; a user's nodes have them from the start. The cluster's own
    autoscaler starts up to ``autoscaled`` more nodes, and ends those that are idle for ``idle_seconds``.
    """

    head_cpus: int = 2
    cpus: int = 2
    gpus: int = 0
    stable: float = 1
    impatient: bool = False
    light: bool = False
    autoscaled: int = 0
    idle_seconds: float = 5.0

    @property
    def node(self) -> dict[str, Any]:
        """What ``Cluster.add_node`` is given for a node that is not the head."""
        return {"num_cpus": self.cpus, **({"num_gpus": self.gpus} if self.gpus else {})}


IMPATIENT = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}


class Raylets:
    """The cluster, seen from a test. ``log`` is for what its process says, which is else said here.

    Raises:
        RuntimeError: its process ended; the message has what it said last.
    """

    running: ClassVar[list[Raylets]] = []
    """The clusters of this process that were not stopped."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        environment: Mapping[str, str] | None = None,
        shape: Shape = Shape(),
        log: Path | None = None,
    ) -> None:
        self.folder = folder
        self._log = log
        self._seen: set[psutil.Process] = set()
        command = [sys.executable, "-m", "tests.support.raylets", str(folder), str(nodes)]
        with log.open("wb") if log is not None else nullcontext() as said:
            self._process = subprocess.Popen(
                [*command, json.dumps(asdict(shape))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # a Ctrl-C is for the test, which then ends the cluster in order
            )
        started = self._answer()
        self.settings = ClusterSettings(address=started["address"], auth_token=started["token"])
        self.nodes: list[str] = started["nodes"]
        self.running.append(self)

    @property
    def up(self) -> bool:
        """Whether its process lives."""
        return self._process.poll() is None

    def cache(self, number: int) -> Path:
        """Where a node keeps its models."""
        return self.folder / f"cache-{number}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to join."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.settings.auth_token or ""}

    def workers(self) -> dict[psutil.Process, str]:
        """The processes of actors and tasks that run, with their titles; those of killed nodes, too."""
        self._note_processes()
        return at_work(self._seen)

    def signal(self, number: int, name: str) -> None:
        """Send a signal (``STOP``, ``CONT``, ``TERM``) to a node's raylet and all that it started."""
        self._command({"signal": name, "node": number})

    def drain(self, number: int | str, seconds: float) -> None:
        """Have Ray drain a node, as its own tools do, until it is to end in ``seconds``."""
        self._command({"drain": number, "seconds": seconds})

    def add(self, environment: Mapping[str, str] | None = None) -> str:
        """One more node; its id."""
        node: str = self._command({"add": dict(environment or {})})["node"]
        self.nodes.append(node)
        return node

    def kill(self, number: int) -> None:
        """End a node's raylet, with SIGKILL; what ran there ends with it."""
        self._command({"kill": number})

    def kill_started(self, node_id: str) -> None:
        """The same for a node that the cluster's autoscaler started."""
        self._command({"kill": node_id})

    def kill_gcs(self) -> None:
        """End the cluster's control store, with SIGKILL; the raylets, the head's too, live on."""
        self._command({"kill": "gcs"})

    def dead(self) -> dict[str, str]:
        """The nodes that Ray has found dead, by id, with what it says of why."""
        found: dict[str, str] = self._command({"dead": True})["dead"]
        return found

    def stop(self) -> None:
        """End the cluster."""
        if self in self.running:
            self.running.remove(self)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended by itself
            self._process.stdin.close()
        self._process.wait(60)

    def _note_processes(self) -> None:
        """What is below the cluster's process: once its raylet is killed, a worker is below none."""
        self._seen = {process for process in self._seen if process.is_running()}
        with suppress(psutil.NoSuchProcess):  # the cluster's own ended
            self._seen.update(psutil.Process(self._process.pid).children(recursive=True))

    def _command(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        if "kill" in command:
            self._note_processes()
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text().strip().splitlines()[-1:] if self._log is not None else "see above"
            raise RuntimeError(
                f"the cluster's process ended ({self._process.wait(10)}); it said last: {said}"
            )
        found: dict[str, Any] = json.loads(line)
        return found


def _add(cluster: Any, folder: Path, number: int, **settings: Any) -> Any:
    more = settings.pop("environment", {})
    return cluster.add_node(
        include_dashboard=False,
        env_vars={"DRAY_MODEL_CACHE": str(folder / f"cache-{number}"), **more},
        **settings,
    )


def _signal(node: Any, name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    for process in [raylet, *raylet.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _kill_by_id(node_id: str) -> None:
    """End the raylet of a node that the autoscaler started, one of our descendants."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.name() == "raylet" and f"--node_id={node_id}" in process.cmdline():
                process.kill()


def _drain(address: str, node_id: str, seconds: float) -> bool:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int((time.time() + seconds) * 1000)
    return bool(GcsClient(address=address).drain_node(node_id, reason, "test", deadline)[0])


def _dead(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {node["NodeID"]: node["DeathReasonMessage"] for node in nodes if not node["Alive"]}


def _reap(nodes: Sequence[Any]) -> None:
    """Hear of raylets that have ended by themselves: workers take a zombie for one that lives, and stay.

    In a thread: a handler of SIGCHLD would interrupt Ray's own calls.
    """
    while True:
        time.sleep(0.5)
        for node in list(nodes):
            for raylet in node.all_processes.get("raylet", ()):
                raylet.process.poll()


def _serve(cluster: Any, folder: Path, count: int, token: str, shape: Shape, answers: TextIO) -> None:
    """Start the nodes, then do as stdin says until it ends."""
    head = {"resources": {"dray_stable": shape.stable}, "num_cpus": shape.head_cpus}
    if shape.impatient:
        head["_system_config"] = IMPATIENT
    if shape.autoscaled:
        os.environ.update(VARIABLES)
        head |= head_arguments(
            folder,
            most=shape.autoscaled,
            cpus=shape.cpus,
            gpus=shape.gpus,
            idle_seconds=shape.idle_seconds,
        )
    nodes = [_add(cluster, folder, 0, **head)]
    nodes += [_add(cluster, folder, number, **shape.node) for number in range(1, count)]
    cluster.wait_for_nodes()
    threading.Thread(target=_reap, args=(nodes,), daemon=True).start()

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    answer(address=cluster.address, token=token, nodes=[node.node_id for node in nodes])
    for line in sys.stdin:
        command = json.loads(line)
        if "add" in command:
            nodes.append(_add(cluster, folder, len(nodes), **shape.node, environment=command["add"]))
            answer(node=nodes[-1].node_id)
        elif "drain" in command:
            name = command["drain"]
            node_id = name if isinstance(name, str) else nodes[name].node_id
            answer(accepted=_drain(cluster.address, node_id, command["seconds"]))
        elif "dead" in command:
            answer(dead=_dead(cluster.global_state.node_table()))
        elif "signal" in command:
            _signal(nodes[command["node"]], command["signal"])
            answer(signalled=command["node"])
        elif command["kill"] == "gcs":
            nodes[0].kill_gcs_server(check_alive=False)
            answer(killed="gcs")
        elif isinstance(command["kill"], str):
            _kill_by_id(command["kill"])
            answer(killed=command["kill"])
        else:
            cluster.remove_node(nodes[command["kill"]], allow_graceful=False)
            answer(killed=command["kill"])


def main() -> None:
    """Serve until stdin ends."""
    from ray.cluster_utils import Cluster

    folder, count, token = Path(sys.argv[1]), int(sys.argv[2]), secrets.token_hex(32)
    shape = Shape(**json.loads(sys.argv[3])) if len(sys.argv) > 3 else Shape()
    enable_token_auth(token)
    start_without([Service.LOG_MONITOR, Service.DASHBOARD])
    if shape.light:
        agents_on_demand()
    answers = sys.stdout
    sys.stdout = sys.stderr
    cluster = Cluster(shutdown_at_exit=False)
    try:
        _serve(cluster, folder, count, token, shape, answers)
    finally:
        with no_survivors():  # nodes that are stopped, or that did not come up, too
            cluster.shutdown()


if __name__ == "__main__":
    main()
