"""Jobs on threads in processes that need not import anything: forked from one that has imported it all.

Half of the time of a small job's process goes into its imports. ``python -m tests.chaos.warm SOCKET`` is a
server of such processes, one a connection. The client sends what to run, and hears its pid and its exit code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from dray import history, triggers
from tests.chaos import thread_job
from tests.support.forking import fork

_START_SECONDS = 60.0


def fork_job(given: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> int:
    """Fork a process that runs the job as :func:`thread_job.run` does; its pid."""
    return fork(lambda: _run(given, environment, log))


def _run(given: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> None:
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(environment)
    # What these read at their import.
    triggers._armed = triggers.parse(os.environ)
    history._folder = os.environ.get(history.FOLDER_VARIABLE)
    tempfile.tempdir = None
    thread_job.run(given)


def import_all(folder: Path) -> None:
    """Import what a whole run imports; ``folder`` is made, and is for that run.

    A run in a process of its own says what that is: threads of one in this process would be forked along.
    """
    folder.mkdir()
    (folder / "in.jsonl").write_text(json.dumps({"custom_id": "a", "method": "POST", **_REQUEST}) + "\n")
    given = {"output": str(folder / "out"), "store_url": f"sqlite:///{folder / 'jobs.db'}", "lost": []}
    reader, writer = os.pipe()

    def run_and_tell() -> None:
        thread_job.run({"input": str(folder / "in.jsonl"), **given})
        os.write(writer, " ".join(sorted(sys.modules)).encode())

    pid = fork(run_and_tell)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        names = file.read().decode().split()
    os.waitpid(pid, 0)
    for name in names:
        with suppress(ImportError):
            import_module(name)


_REQUEST = {
    "url": "/v1/chat/completions",
    "body": {"messages": [{"role": "user", "content": "plain"}], "max_tokens": 4},
}


class WarmServer:
    """The server's process, seen from a test."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "warm.sock"
        self._process = subprocess.Popen([sys.executable, "-m", "tests.chaos.warm", str(self._path)])

    def start(self, given: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> WarmProcess:
        """Run a job in a process of its own."""
        line = socket.socket(socket.AF_UNIX)
        _until_it_listens(line, self._path, self._process)
        request = {"given": dict(given), "environment": dict(environment), "log": str(log)}
        line.sendall(json.dumps(request).encode() + b"\n")
        return WarmProcess(line)

    def stop(self) -> None:
        """End the server; jobs that run go on."""
        self._process.kill()
        self._process.wait()


def _until_it_listens(line: socket.socket, path: Path, process: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            line.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.05)
            if process.poll() is not None:
                raise RuntimeError(f"the warm process ended with {process.returncode}") from None
        else:
            return


class WarmProcess:
    """A process of the server: what a test asks of a :class:`subprocess.Popen`."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.pid = self._number(_START_SECONDS)
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal.

        Raises:
            TimeoutError: it runs still.
        """
        if self.returncode is None:
            self.returncode = self._number(timeout)
            self._line.close()
        return self.returncode

    def _number(self, timeout: float | None) -> int:
        """The next answer, a line."""
        if not select.select([self._line], [], [], timeout)[0]:
            raise TimeoutError(f"no answer in {timeout} s")
        found = b""
        while not found.endswith(b"\n"):
            more = self._line.recv(1)
            if not more:
                raise ConnectionError("the process that forks jobs is gone")
            found += more
        return int(found)

    def poll(self) -> int | None:
        """The same, without waiting; None while it runs."""
        with suppress(TimeoutError):
            return self.wait(0.001)
        return None

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def main() -> None:
    """Serve until killed, or until the parent is gone."""
    with tempfile.TemporaryDirectory() as folder:
        import_all(Path(folder) / "first")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # of connections: the kernel reaps them
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen()
        server.settimeout(1.0)
        parent = os.getppid()
        while os.getppid() == parent:
            with suppress(TimeoutError):
                connection, _ = server.accept()
                connection.settimeout(None)
                if not os.fork():
                    server.close()
                    _serve(connection)
                connection.close()


def _serve(connection: socket.socket) -> NoReturn:
    """One process, from its start to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection.makefile("rb") as lines:
        asked = json.loads(lines.readline())
    pid = fork_job(asked["given"], asked["environment"], Path(asked["log"]))
    connection.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


if __name__ == "__main__":
    main()
