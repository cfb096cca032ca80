"""The machines of the soak: spot nodes that come and go, stores that hiccup, and the driver's process."""

from __future__ import annotations

import json
import queue
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.soak_driver import Order
from tests.support.command import ROOT
from tests.support.cutting_proxy import CuttingProxy
from tests.support.metadata_server import MetadataServer
from tests.support.postgres import PostgresServer
from tests.support.raylets import Raylets, Shape

SPOT = 3
"""Nodes beside the head, one replica each; the head has none, and stays."""

_SILENT = "health check failed"
"""In Ray's words for a node that it has found dead because that did not answer."""


class Driver:
    """The process of ``soak_driver``, and its fork that drives a job: ``running`` until its end is heard."""

    def __init__(self) -> None:
        self.running = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.soak_driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._told: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._told.get(timeout=120)  # it is ready

    def start(self, order: Order) -> int:
        """Have a job driven; the process that does."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        pid = int(self._told.get(timeout=60)["pid"])
        self.running = True
        return pid

    def wait(self, seconds: float) -> int | None:
        """The exit code of the process that drives, below 0 for a signal; None when it goes on."""
        with suppress(queue.Empty):
            code = int(self._told.get(timeout=max(seconds, 0.001))["code"])
            self.running = False
            return code
        assert self._process.poll() is None, "the process of the drivers has ended"
        return None

    def tell_again(self, code: int) -> None:
        """Its end has been heard by somebody who does not act on it."""
        self._told.put({"code": code})
        self.running = True

    def ended(self, pid: int) -> bool:
        """Whether the process that drives has ended, and nobody has heard of it yet."""
        return not self.running or not psutil.pid_exists(pid) or not self._told.empty()

    def close(self) -> None:
        """End it, and the job that it drives."""
        assert self._process.stdin is not None
        for child in psutil.Process(self._process.pid).children() if self._process.poll() is None else ():
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.stdin.close()
        self._process.wait(60)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._told.put(json.loads(line))


class Cloud:
    """A head and :data:`SPOT` spot nodes, each with a metadata service of its own. Safe between threads.

    ``usable`` are the nodes without a notice, by their numbers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = threading.RLock()
        self._clusters = 0
        self._free: list[MetadataServer] = []
        self._servers: dict[int, MetadataServer] = {}
        self._condemned: set[int] = set()
        self._ended: set[int] = set()
        self._refill: threading.Thread | None = None
        self._wanted = 0
        self.usable: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        self._clusters += 1
        shape = Shape(head_cpus=0, cpus=1, impatient=True, light=True)
        # At Ray's usual nice 15 replicas would starve beside whatever else the machine does.
        environment = {"RAY_worker_niceness": "0"}
        self.raylets = Raylets(self._folder / f"cluster-{self._clusters}", 1, environment, shape)

    def node_id(self, number: int) -> str:
        """Ray's name of a node."""
        return self.raylets.nodes[number]

    def refill(self) -> None:
        """Have as many usable nodes as there should be, soon: they start one after the other."""
        with self._guard:
            if self._refill is None or not self._refill.is_alive():
                self._refill = threading.Thread(target=self._add_missing, daemon=True)
                self._refill.start()

    def fill(self) -> None:
        """Have as many usable nodes as there should be, now."""
        self._add_missing()

    def announce(self, number: int, seconds: float) -> None:
        """AWS says that it takes the node back."""
        self._servers[number].interrupt(seconds=seconds)
        self.usable.discard(number)
        self._condemned.add(number)

    def kill(self, number: int) -> int:
        """SIGKILL to the node's raylet, and what ran there ends with it; when, in monotonic nanoseconds."""
        with self._guard:
            self.usable.discard(number)
            self._condemned.discard(number)
            at = time.monotonic_ns()
            self.raylets.kill(number)
            self._ended.add(number)
            server = self._servers.pop(number)
            server.spare()
            self._free.append(server)
            return at

    def given_up(self) -> dict[str, str]:
        """Nodes nobody killed that Ray has found dead, by Ray's names, with its words; they are ended.

        Ray waits for 2 s here: on a busy machine a node may not answer for as long.
        """
        found = {}
        with self._guard:
            dead = self.raylets.dead()
            for number in sorted(self._servers):
                name = self.node_id(number)
                if _SILENT in dead.get(name, ""):
                    found[name] = dead[name]
                    self.kill(number)
        return found

    def end_condemned(self) -> None:
        """Nodes that had a notice are of no more use: Ray drains them."""
        for number in sorted(self._condemned):
            self.kill(number)

    def settle(self) -> None:
        """Until Ray has found dead what was killed: else the next job begins on it, and loses it."""
        deadline = time.monotonic() + 30.0
        ended = {self.node_id(number) for number in self._ended}
        while left := ended - self.raylets.dead().keys():
            assert time.monotonic() < deadline, f"Ray does not find that these nodes are dead: {left}"
            time.sleep(0.2)

    def renew(self) -> None:
        """Another cluster: Ray keeps what it knows of dead nodes and actors."""
        self._end()
        self._begin()

    def close(self) -> None:
        """End all."""
        self._end()
        for server in self._free:
            server.__exit__(None, None, None)
        self._free.clear()

    def _add_missing(self) -> None:
        while True:
            with self._guard:
                if len(self.usable) >= SPOT:
                    return
                server = self._free.pop() if self._free else MetadataServer("aws").__enter__()
                self.raylets.add({"DRAY_METADATA_AWS": server.url})
                number = len(self.raylets.nodes) - 1
                self._servers[number] = server
                self.usable.add(number)

    def _end(self) -> None:
        if self._refill is not None:
            self._refill.join()
        with self._guard:
            self.raylets.stop()
            self.usable.clear()
            self._condemned.clear()
            self._ended.clear()
            for server in self._servers.values():
                server.spare()
            self._free += self._servers.values()
            self._servers.clear()


class SqliteStore:
    """A store in a file. ``url`` is the soak's way to it, ``through`` the driver's."""

    kinds = ("locked",)

    def __init__(self, folder: Path) -> None:
        self._file = folder / "jobs.db"
        self.url = self.through = f"sqlite:///{self._file}"

    def locked(self, seconds: float = 1.0, how: str = "IMMEDIATE") -> bool:
        """This process holds the lock for writing; False where there is no store yet, or it is not had."""
        try:
            with_lock = sqlite3.connect(
                f"file:{self._file}?mode=rw", uri=True, timeout=5, isolation_level=None
            )
            with_lock.execute(f"BEGIN {how}")
        except sqlite3.Error:
            return False
        time.sleep(seconds)
        with_lock.execute("ROLLBACK")
        with_lock.close()
        return True

    def takes_writes(self) -> bool:
        """Whether no process that stands still keeps commits out, by a lock for reading or writing."""
        return self.locked(0.0, "EXCLUSIVE")

    def drop(self) -> None:
        """It goes with its folder."""


class PostgresStore:
    """A database of its own on a server, which the driver reaches through a proxy."""

    kinds = ("terminated", "cut")

    def __init__(self, server: PostgresServer, proxy: CuttingProxy) -> None:
        self._server, self._proxy = server, proxy
        self._name = server.create_database()
        self.url = server.url(self._name)
        self.through = self.url.replace(f":{server.port}/", f":{proxy.port}/")

    def terminated(self) -> bool:
        """The server ends all connections to the database."""
        query = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with self._server.connect(self._name) as connection:
            return bool(connection.execute(query).fetchall())

    def takes_writes(self) -> bool:
        """Whether no process that stands still holds a lock on a row."""
        with self._server.connect(self._name) as connection:
            old = (
                "SELECT 1 FROM pg_stat_activity "
                "WHERE datname = current_database() AND xact_start < now() - interval '3 s'"
            )
            return not connection.execute(old).fetchall()

    def cut(self) -> bool:
        """The network resets all of the driver's connections."""
        return self._proxy.cut() > 0

    def drop(self) -> None:
        """Remove the database."""
        with self._server.connect() as connection:
            connection.execute(f"DROP DATABASE {self._name} WITH (FORCE)")


Store = SqliteStore | PostgresStore


class Stores:
    """Makes stores; the server of PostgreSQL starts when it is first needed."""

    def __init__(self) -> None:
        self._server: PostgresServer | None = None
        self._proxy: CuttingProxy | None = None

    @contextmanager
    def made(self, folder: Path, *, postgres: bool) -> Iterator[Store]:
        """A store for one job."""
        if not postgres:
            yield SqliteStore(folder)
            return
        if self._server is None or self._proxy is None:
            self._server = PostgresServer().__enter__()
            self._proxy = CuttingProxy(self._server.port).__enter__()
        store = PostgresStore(self._server, self._proxy)
        try:
            yield store
        finally:
            store.drop()

    def close(self) -> None:
        """End the server."""
        for one in (self._proxy, self._server):
            if one is not None:
                one.__exit__(None, None, None)
        self._server = self._proxy = None
