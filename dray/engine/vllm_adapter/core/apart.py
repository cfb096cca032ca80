"""The front's side of an engine core in a process of its own.

vLLM has such an arrangement (``SyncMPClient``) and this is it, with three differences. The process starts
before the front's imports and imports beside them. The kernel ends it when the front ends, however that
comes. A step of the engine waits a quarter of a second for the core and no longer, so that the front sees a
core that was killed, and work that came in.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dray.engine.tuning import Tuned, Tuning
from dray.engine.vllm_adapter.core.process import LOG, TUNED, LastWords, Order
from dray.engine.vllm_adapter.core.socket_folder import SocketFolder
from dray.errors import EngineDeadError, EngineStartError
from dray.processes import end_of_child

_PROGRAM = "dray.engine.vllm_adapter.core.process"
_WAIT_SECONDS = 0.25  # of a step for the core's next message
_WORDS_SECONDS = 2.0  # for the reason to arrive, after the core's end was seen


class CoreProcess:
    """The process, from before the front's imports until its end.

    Started in the thread that owns the engine: the kernel ends the process when that thread ends.
    """

    def __init__(self, *, eager_on_cpu: bool, tuning: Tuning | None) -> None:
        self.name = "EngineCore"
        self.tuned: Tuned | None = None
        """The limits that its scheduler chose."""
        self._tuning = tuning
        self._order: tuple[Callable[..., None], dict[str, Any]] | None = None
        self._words: LastWords | None = None
        self._heard = threading.Event()  # nothing more of use comes over the line
        self._sockets = SocketFolder()
        self._line, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-P", "-m", _PROGRAM]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid()), str(int(eager_on_cpu))],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # the terminal's Ctrl-C is for the command
            )
        self.sentinel = end_of_child(self._process.pid)
        threading.Thread(target=self._listen, name="dray-engine-core", daemon=True).start()

    def _listen(self) -> None:
        """Log what the core logs, and keep its last words."""
        with suppress(EOFError, OSError):
            while True:
                kind, *said = json.loads(self._line.recv_bytes())
                if kind == LOG:
                    level, name, message = said
                    logging.getLogger(name).log(level, "%s", message)
                elif kind == TUNED:
                    self.tuned = Tuned.of(said[0])
                else:
                    self._words = LastWords(**said[0])
                    self._heard.set()
        self._heard.set()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def end(self) -> None:
        """Kill it, if it lives, and wait for that. vLLM may still look at ``sentinel``, which stays open."""
        self._process.kill()
        self._process.wait()
        self._sockets.remove()

    def last_words(self) -> LastWords | None:
        """Why it ended, if it could say so. Waits briefly."""
        self._heard.wait(_WORDS_SECONDS)
        return self._words

    # -- what vLLM asks of ``multiprocessing`` and of its processes ----------------------------

    def Process(  # noqa: N802  multiprocessing's name
        self, *, target: Callable[..., None], name: str, kwargs: dict[str, Any]
    ) -> CoreProcess:
        """This process, which will run ``target``."""
        self.name = name
        self._order = target, kwargs
        return self

    def start(self) -> None:
        """Send the order, with the environment as it is now."""
        assert self._order is not None
        with suppress(OSError):  # it is dead: its exit status is looked at right after
            self._line.send(Order(dict(os.environ), *self._order, self._tuning))

    @property
    def exitcode(self) -> int | None:
        """Its exit status; below 0, the signal that ended it; None while it runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for ``timeout`` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)


@contextmanager
def running_in(core: CoreProcess) -> Iterator[None]:
    """Around the building of an ``LLMEngine``: its core runs in ``core``.

    Raises:
        EngineStartError: the core did not start; says what it said.
    """
    from vllm.v1.engine import utils

    original = utils.get_mp_context
    utils.get_mp_context = lambda: core
    try:
        yield
    except RuntimeError as error:
        if core.is_alive():
            raise
        raise _start_error(core) from error
    finally:
        utils.get_mp_context = original


def _start_error(core: CoreProcess) -> EngineStartError:
    said = core.last_words()
    if said is None:
        return EngineStartError(f"the engine core's process ended at its start ({_end_of(core)})")
    return EngineStartError(f"{said.kind}: {said.line}", oom=said.oom)


class CoreLine:
    """The front's line to its core, in place of the client's own waiting for outputs."""

    def __init__(self, client: Any, core: CoreProcess) -> None:
        from vllm.v1.engine import EngineCoreOutputs

        self._client = client
        self._core = core
        self._queue = client.outputs_queue
        self._nothing = EngineCoreOutputs
        client.get_output = self.next_outputs

    def next_outputs(self) -> Any:
        """The next message of the core; an empty one after a quarter of a second, or when woken."""
        try:
            outputs = self._queue.get(timeout=_WAIT_SECONDS)
        except queue.Empty:
            self._client.ensure_alive()
            return self._nothing()
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    @property
    def more(self) -> bool:
        """Whether another message is there."""
        return not self._queue.empty()

    def wake(self) -> None:
        """Have the step that waits return. For other threads."""
        self._queue.put_nowait(self._nothing())

    def check(self) -> None:
        """Look whether the core lives, where nothing is asked of it.

        Raises:
            EngineDeadError: it does not.
        """
        if not self._core.is_alive():
            raise self.death()

    def ended_by(self, error: Exception) -> bool:
        """Whether an error of a step says that the core is dead, and not that the front has a fault."""
        return type(error).__name__ == EngineDeadError.__name__ or not self._core.is_alive()  # vLLM's, too

    def death(self) -> EngineDeadError:
        """What the core's death is to the replica."""
        said = self._core.last_words()
        if said is None:
            return EngineDeadError(f"the engine core's process ended ({_end_of(self._core)})")
        return EngineDeadError(f"{said.kind} in the engine's core", oom=said.oom)


def _end_of(core: CoreProcess) -> str:
    core.join(_WORDS_SECONDS)
    status = core.exitcode
    if status is None:
        return "it still ends"
    return f"exit status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
