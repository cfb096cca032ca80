"""The head of a local cluster: a process of its own that starts Ray, and ends it when its parent is gone.

Ray runs Python between fork and exec of its processes. In a parent with many threads such a child can hang
for ever on a lock that some thread held at that moment; the head has one thread. And it outlives a killed
parent long enough to shut Ray down: most of its processes end by themselves, its agents after a minute.

The protocol: settings as one line of JSON on stdin; an answer as one line of JSON on stdout, ``address`` or
``error``; the end of stdin asks for the end. Until the settings come, the head imports Ray, and starts
nothing.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dray.cluster.base import STABLE_RESOURCE, ClusterSettings
from dray.cluster.ray_private import Service, agents_on_demand, look_often, start_without
from dray.errors import ClusterError, first_line
from dray.imports import lasting_imports, own_program
from dray.processes import no_survivors
from dray.temporary import TemporaryFolder

_FOLDER = "dray-ray-"
# Ray puts sockets into it, whose paths Linux limits. This is the longest one, with a pid of 7 digits.
_SOCKET = f"/{_FOLDER}12345678/r/session_2026-01-01_00-00-00_123456_1234567/sockets/plasma_store"
_LONGEST = 107
_SHORT = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  the folder in them is this user's alone
MARK = 1  # as a user marks a node: shard tasks ask for a thousandth each
_START_SECONDS = 180.0  # Ray's own limits are lower; this one is for what they do not see
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 1.0


class Head:
    """The head process, seen from the process that uses the cluster.

    Without ``settings`` it waits for :meth:`begin`.
    """

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self._begun = False
        self._environment = dict(os.environ)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as the process
        self._process = subprocess.Popen(
            own_program("dray.cluster.head"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # a Ctrl-C is for the parent to handle
        )
        if settings is not None:
            self.begin(settings)

    def begin(self, settings: ClusterSettings) -> None:
        """Have it start Ray, in the environment of now; returns at once."""
        self._begun = True
        self._send(
            {
                "num_cpus": settings.num_cpus,
                "num_gpus": settings.num_gpus,
                "environment": dict(os.environ.items() - self._environment.items()),
                "unset": sorted(self._environment.keys() - os.environ.keys()),
            }
        )

    def wait(self, look: Callable[[], None] = lambda: None) -> str:
        """The address of the cluster, once Ray has started.

        What ``look``, called once a second, raises ends the wait.

        Raises:
            ClusterError: it has not.
        """
        assert self._process.stdout is not None
        until = time.monotonic() + _START_SECONDS
        while not select.select([self._process.stdout], [], [], _LOOK_SECONDS)[0]:
            look()
            if time.monotonic() > until:
                raise ClusterError(
                    f"could not start Ray on this machine: no answer in {_START_SECONDS:.0f} s"
                )
        answer = json.loads(self._process.stdout.readline() or b"{}")
        if "address" in answer:
            return str(answer["address"])
        reason = answer.get("error") or self._last_words()
        raise ClusterError(f"could not start Ray on this machine: {reason}")

    def ask_to_stop(self) -> None:
        """Let Ray end; returns at once."""
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def stop(self) -> None:
        """End Ray and wait until it is gone; a head that has started nothing is ended at once."""
        if not self._begun:
            self._process.kill()
        self.ask_to_stop()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # Ray's processes end with it
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # it died at once: ``wait`` says of what
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"its head process ended with code {self._process.wait()}"


def main() -> None:
    """The head process itself."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing but the answer may come out of stdout
    with lasting_imports():
        import ray  # noqa: F401  beside the parent's imports and checks
    line = sys.stdin.readline()
    if not line:  # the parent is gone, or has nothing to start
        return
    settings = json.loads(line)
    os.environ.update(settings["environment"])
    for name in settings["unset"]:
        os.environ.pop(name, None)
    try:
        temporary = TemporaryFolder(_FOLDER, short_base())
    except ClusterError as error:
        print(json.dumps({"error": str(error)}), file=answers, flush=True)
        return
    try:
        print(json.dumps(_started(settings, temporary.path)), file=answers, flush=True)
        sys.stdin.read()
        _stop()
    finally:
        temporary.remove()


def short_base() -> Path:
    """Where temporary files are; another folder where the names of Ray's sockets would be too long there.

    Batch systems have such folders.

    Raises:
        ClusterError: no such folder can be written to.
    """
    usual = Path(tempfile.gettempdir())
    if len(os.fsencode(usual)) + len(_SOCKET) <= _LONGEST:
        return usual
    for folder in _SHORT:
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise ClusterError(
        f"TMPDIR ({usual}) is too long for the names of Ray's sockets: set it to a path of at most "
        f"{_LONGEST - len(_SOCKET)} characters"
    )


def _started(settings: dict[str, Any], temporary: Path) -> dict[str, str]:
    import ray

    # Sockets between vLLM's ranks: those of a replica that is killed go with the folder, and not into /tmp.
    os.environ.setdefault("VLLM_RPC_BASE_PATH", str(temporary))
    start_without(list(Service))  # one node that does not grow and shows no page; its logs go to files
    agents_on_demand()
    look_often()
    try:
        ray.init(
            address="local",
            num_cpus=settings["num_cpus"],
            num_gpus=settings["num_gpus"],
            resources={STABLE_RESOURCE: MARK},
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            # One level down: Ray opens its own folder, with sockets and logs, to every user of the machine.
            _temp_dir=str(temporary / "r"),
        )
    except Exception as error:  # noqa: BLE001  process edge: the parent raises it
        return {"error": f"{type(error).__name__}: {first_line(error, 300)}"}
    return {"address": ray.get_runtime_context().gcs_address}


def _stop() -> None:
    import ray

    with no_survivors():
        ray.shutdown()
