"""This machine as a node of a rented cluster, without processors or GPUs: a driver of Ray's runs on a node.

It takes no work. A process of its own runs the node, and ends it when its stdin ends: so the node goes with
the driver, however that ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import IO

from dray.cluster.ray_private import nodes_here
from dray.errors import ClusterError
from dray.processes import no_survivors

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_UP = b"up\n"


class OwnNode:
    """The node's process, seen from the driver. Inherits the token from the environment."""

    def __init__(self, address: str) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from dray.cluster.own_node import main; main()", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # a Ctrl-C is for the driver to handle
        )

    def wait(self) -> None:
        """Wait until it has joined.

        Raises:
            ClusterError: it has not.
        """
        assert self._process.stdout is not None
        if self._process.stdout.readline() != _UP:
            self.stop()
            raise ClusterError(f"this machine cannot join the cluster: {self._last_words()}")

    def stop(self) -> None:
        """End it."""
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else "it says nothing"


def join_as_node(address: str) -> OwnNode | None:
    """Make this machine a node of the cluster; None where it is one.

    Raises:
        ClusterError: it cannot: of another version of Ray or Python, or not reached by the others.
    """
    if nodes_here(address):
        return None
    node = OwnNode(address)
    node.wait()
    return node


def main() -> None:
    """The process itself."""
    address = sys.argv[1]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--address={address}"]
    command += ["--num-cpus=0", "--num-gpus=0", "--disable-usage-stats"]
    before = nodes_here(address)
    node = subprocess.Popen(command, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    try:
        if _joined(node, address, before):
            os.write(1, _UP)
            sys.stdin.read()
    finally:
        with no_survivors():
            node.terminate()
            with suppress(subprocess.TimeoutExpired):
                node.wait(_STOP_SECONDS / 2)


def _joined(node: subprocess.Popen[bytes], address: str, before: set[str]) -> bool:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and node.poll() is None:
        if nodes_here(address) - before:
            return True
        time.sleep(_LOOK_SECONDS)
    return False
