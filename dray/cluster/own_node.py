"""This machine as a node of a rented cluster, without processors or GPUs: a driver of Ray's runs on a node.

It takes no work. A process of its own runs the node. It ends the node when its stdin has ended, and no other
driver of this machine holds the node: so the node goes with the last driver, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from dray.cluster.ray_private import nodes_here
from dray.errors import ClusterError
from dray.imports import own_program
from dray.processes import no_survivors
from dray.temporary import lock_file, open_lock

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_UP = b"up\n"
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")  # first the cluster's, then ours


class OwnNode:
    """A driver's hold on the node, which ends with the last driver of this machine that holds it.

    Each driver has a lock on a file of the cluster, which they share. The node's process inherits that of the
    driver that starts it, and ends the node once it has the lock alone. It inherits the token, too.
    """

    def __init__(self, address: str) -> None:
        self._lock = _lock(address)  # where the node of earlier drivers ends: after that
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as the process
        self._process: subprocess.Popen[bytes] | None = None

    def join(self, address: str) -> None:
        """Start the node where this machine is none yet, and wait until it has joined.

        Raises:
            ClusterError: it has not.
        """
        if nodes_here(address):
            return
        self._process = subprocess.Popen(
            [*own_program("dray.cluster.own_node"), address, str(self._lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # a Ctrl-C is for the driver to handle
            pass_fds=[self._lock],
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != _UP:
            self._end(self._process)
            raise ClusterError(f"this machine cannot join the cluster: {self._last_words()}")

    def stop(self) -> None:
        """Give up the hold; where no other driver has one, end the node."""
        if self._process is not None:
            alone = True
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # Linux has taken the shared lock back all the same
                alone = False
            if alone:
                self._end(self._process)
            else:
                _close_stdin(self._process)  # it waits for the others
        os.close(self._lock)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        _close_stdin(process)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _last_words(self) -> str:
        self._log.seek(0)
        log = self._log.read().decode(errors="replace")
        lines = [line for line in log.splitlines() if line.strip()]
        return versions_told(log) or (lines[-1].strip()[:300] if lines else "it says nothing")


def versions_told(text: str) -> str | None:
    """The versions of the cluster and of this machine, where Ray's error says that they differ; else None.

    Ray's text has them on lines of their own.
    """
    found = [f"Ray {ray}, Python {python}" for ray, python in _VERSIONS.findall(text)]
    if len(found) < 2:
        return None
    return f"both need the same versions; cluster: {found[0]}; here: {found[1]}"


def join_as_node(address: str) -> OwnNode:
    """Make this machine a node of the cluster, where it is none, and hold it.

    Raises:
        ClusterError: it cannot: of another version of Ray or Python, or not reached by the others.
    """
    node = OwnNode(address)
    try:
        node.join(address)
    except BaseException:
        node.stop()
        raise
    return node


def _lock(address: str) -> int:
    """A shared lock for this user's drivers on the cluster at ``address``; closing it gives it back.

    Raises:
        ClusterError: its file cannot be made.
    """
    path = lock_of(address)
    try:
        file = open_lock(path)
    except OSError as error:
        raise ClusterError(f"this machine cannot join the cluster: {path}: {error.strerror}") from error
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def lock_of(address: str) -> Path:
    """The file of the lock that drivers on the cluster at ``address`` share."""
    return lock_file(f"node-{re.sub(r'[^0-9A-Za-z.]', '_', address)}")


def _close_stdin(process: subprocess.Popen[bytes]) -> None:
    with suppress(BrokenPipeError):
        assert process.stdin is not None
        process.stdin.close()


def main() -> None:
    """The process itself."""
    address, lock = sys.argv[1], int(sys.argv[2])
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", f"--address={address}"]
    command += ["--num-cpus=0", "--num-gpus=0", "--disable-usage-stats"]
    before = nodes_here(address)
    node = subprocess.Popen(command, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    try:
        if _joined(node, address, before):
            with suppress(BrokenPipeError):  # the driver is gone, and another one may hold the node
                os.write(1, _UP)
            sys.stdin.read()
            fcntl.flock(lock, fcntl.LOCK_EX)
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
