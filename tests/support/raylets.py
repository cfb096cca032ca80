"""A Ray cluster of several nodes on this machine, in a process of its own.

::

    python -m tests.support.raylets FOLDER NODES      the head and NODES - 1 more raylets

prints one line of JSON with the cluster's ``address``, its ``token`` and the ids of its ``nodes``, and ends
when its stdin does. Each node has a cache of models of its own, ``FOLDER/cache-N``. A line of JSON on stdin
is a command, answered by a line: ``{"add": true}`` starts one more node, ``{"kill": N}`` ends one by SIGKILL.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dray.cluster import ClusterSettings
from dray.cluster.ray_private import enable_token_auth
from dray.processes import no_survivors


class Raylets:
    """The cluster, seen from a test."""

    def __init__(self, folder: Path, nodes: int, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.raylets", str(folder), str(nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        started = self._answer()
        self.settings = ClusterSettings(address=started["address"], auth_token=started["token"])
        self.nodes: list[str] = started["nodes"]

    def cache(self, number: int) -> Path:
        """Where a node keeps its models."""
        return self.folder / f"cache-{number}"

    def add(self) -> str:
        """One more node; its id."""
        node: str = self._command({"add": True})["node"]
        self.nodes.append(node)
        return node

    def kill(self, number: int) -> None:
        """End a node's raylet, with SIGKILL; what ran there ends with it."""
        self._command({"kill": number})

    def stop(self) -> None:
        """End the cluster."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _command(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


def _add(cluster: Any, folder: Path, number: int, **settings: Any) -> Any:
    return cluster.add_node(
        num_cpus=2,
        include_dashboard=False,
        env_vars={"DRAY_MODEL_CACHE": str(folder / f"cache-{number}")},
        **settings,
    )


def main() -> None:
    """Serve until stdin ends."""
    from ray.cluster_utils import Cluster

    folder, count, token = Path(sys.argv[1]), int(sys.argv[2]), secrets.token_hex(32)
    enable_token_auth(token)
    answers = sys.stdout
    sys.stdout = sys.stderr
    cluster = Cluster(shutdown_at_exit=False)
    stable = {"dray_stable": 10_000}
    nodes = [_add(cluster, folder, 0, resources=stable)]
    nodes += [_add(cluster, folder, number) for number in range(1, count)]
    cluster.wait_for_nodes()

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    answer(address=cluster.address, token=token, nodes=[node.node_id for node in nodes])
    with no_survivors():
        for line in sys.stdin:
            command = json.loads(line)
            if "add" in command:
                nodes.append(_add(cluster, folder, len(nodes)))
                answer(node=nodes[-1].node_id)
            else:
                cluster.remove_node(nodes[command["kill"]], allow_graceful=False)
                answer(killed=command["kill"])
        cluster.shutdown()


if __name__ == "__main__":
    main()
