"""A private PostgreSQL server for tests and benchmarks, from the binaries of Debian's package."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import psutil
import psycopg

from dray.ports import lasting_port
from tests.support.packages import postgres_binaries

_START_SECONDS = 60.0
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 6 * 2**30  # a server's data, and what the engines and the cluster of other tests need
_PREFIX = "dray-pg-"
# The test process holds the other end of the pipe that this shell reads: reading ends when that process does.
_GUARD = 'read -r _; kill -QUIT "$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)" 2>/dev/null; rm -rf "$1"'
_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

Mode = Literal["smart", "fast", "immediate"]


class PostgresServer:
    """A server of its own: own data folder, free loopback port, fsync on, password required.

    PostgreSQL refuses to run as root, so then it runs as the user ``postgres`` (or ``nobody``).

    The data lie in memory where it has room: recovery on a disk waits for all that other tests write
    there. A benchmark asks for the disk. Kills lose nothing either way: the files outlive the processes.

    A killed test run must not keep that memory: a guard ends the server of a process that is gone. Where
    the guard was killed, too, the next server's start deletes the folder.
    """

    def __init__(self, *, settings: dict[str, str] | None = None, on_disk: bool = False) -> None:
        self._parent = None if on_disk else _memory_with_room()
        self._bin = _find_binaries()
        self._user = _other_user() if os.geteuid() == 0 else None
        self._settings = settings or {}
        self._password = secrets.token_hex(8)
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self.port = 0

    def __enter__(self) -> PostgresServer:
        _sweep(self._parent or Path(tempfile.gettempdir()))
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=self._parent))
        guard = ["sh", "-c", _GUARD, "guard", str(self._folder)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        self._initialise()
        self.port = lasting_port()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("immediate")
        shutil.rmtree(self._folder, ignore_errors=True)
        assert self._guard is not None
        self._guard.communicate(timeout=30)  # it finds nothing to do

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, with its password."""
        return f"postgresql://dray:{self._password}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A plain connection, in autocommit."""
        return psycopg.connect(self.url(database), autocommit=True)

    def create_database(self, template: str = "template0") -> str:
        """Makes a database, and gives its name."""
        self._databases += 1
        name = f"dray_{self._databases}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    @contextmanager
    def read_only(self, database: str) -> Iterator[None]:
        """Sessions that begin in the block take no writes, as a standby's; those before it are cut off."""
        with self.connect() as other:
            other.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            other.execute(cut, [database])
        try:
            yield
        finally:
            with self.connect() as other:
                other.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")

    def start(self) -> None:
        """Starts the server on its port, and waits until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._folder),
            "fsync": "on",
            "synchronous_commit": "on",
            "max_connections": "50",
            "recovery_init_sync_method": "syncfs",  # a crash restart need not sync file by file
            "max_wal_size": "256MB",  # by itself 1 GB, of memory where the data lie there
            **self._settings,
        }
        command: list[str | Path] = [self._bin / "postgres", "-D", self._folder / "data"]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder, **self._identity()
            )
        self._wait_until_up()

    def stop(self, mode: Mode = "fast") -> None:
        """Stops the server by its own process id. ``immediate`` leaves recovery for the next start."""
        if self._process is None:
            return
        self._process.send_signal(_SIGNALS[mode])
        self._process.wait(30)
        self._process = None

    def restart(self, mode: Mode = "fast") -> None:
        """Stops and starts again, on the same port."""
        self.stop(mode)
        self.start()

    def kill9(self) -> None:
        """Kills the postmaster and all its children with SIGKILL."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in (self.pid, *map(int, children)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        assert self._process is not None
        self._process.wait(10)
        self._process = None
        for child in children:
            _wait_until_gone(int(child))

    def _initialise(self) -> None:
        secret = self._folder / "password"
        secret.write_text(self._password)
        if self._user is not None:
            os.chown(secret, self._user.pw_uid, self._user.pw_gid)
        command: list[str | Path] = [self._bin / "initdb", "-D", self._folder / "data", "-U", "dray"]
        command += [
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self._folder, **self._identity())
        secret.unlink()
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed: {done.stderr}")

    def _identity(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid}

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {self._log_tail()}") from None
                time.sleep(0.05)
            else:
                return

    def _log_tail(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-2000:]


def _memory_with_room() -> Path | None:
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return None
    room = min(shutil.disk_usage(_MEMORY).free, psutil.virtual_memory().available)
    return _MEMORY if room > _ROOM_BYTES else None


def _sweep(parent: Path) -> None:
    """Deletes the folders of servers whose process was killed before it could."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _find_binaries() -> Path:
    found = postgres_binaries()
    if found is None:
        raise RuntimeError("PostgreSQL is not installed: apt-get install postgresql")
    return found


def _other_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL cannot run as root, and there is no user postgres or nobody")


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
