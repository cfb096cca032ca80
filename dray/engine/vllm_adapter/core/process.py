"""vLLM's engine core in a process of its own: this program, and what it and its front send each other.

It imports vLLM beside the front, which does the same, then waits for one order: vLLM's function that runs a
core, with its arguments. The program's arguments are the file descriptor of the line to the front, the
front's process id, and whether a CPU would run eagerly. The process dies with the thread that started it.

On the line the front sends one :class:`Order`. The core sends log records, the limits that it chose, and what
it dies of.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from dray.engine.grammar_process import die_with
from dray.engine.log_records import message_of, without_error_text
from dray.engine.tuning import Tuned, Tuning
from dray.engine.vllm_adapter.core.rank_process import ranks_end_with_this_process
from dray.engine.vllm_adapter.imports import import_vllm
from dray.errors import ConfigError, first_line

LOG, LAST_WORDS, TUNED = "log", "last words", "tuned"  # kinds of messages of the core

_MODULES = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "dray.engine.vllm_adapter.core.scheduler",
)
_LONGEST_RECORD = 2000  # characters


@dataclass(frozen=True, slots=True)
class Order:
    """What the process is to run: vLLM's function, with the front's environment as it was then."""

    environment: dict[str, str]
    target: Callable[..., None]
    arguments: dict[str, Any]
    tuning: Tuning | None


@dataclass(frozen=True, slots=True)
class LastWords:
    """What ended a core, as it said itself. ``line`` is the first of the error's text."""

    kind: str
    line: str
    oom: bool

    @staticmethod
    def of(error: BaseException) -> LastWords:
        """What ``error`` says."""
        from dray.failures.signs import out_of_memory

        return LastWords(type(error).__name__, first_line(error, 500), out_of_memory(error))


class Line(logging.Handler):
    """The core's end of the line: a logging handler, and a way to say what it dies of."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.INFO)
        self.connection = connection
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record of the log."""
        self._send([LOG, record.levelno, record.name, message_of(record)[:_LONGEST_RECORD]])

    def tell_tuned(self, tuned: Tuned) -> None:
        """Send the limits that were chosen."""
        self._send([TUNED, asdict(tuned)])

    def say(self, error: BaseException) -> None:
        """Send what the core dies of."""
        self._send([LAST_WORDS, asdict(LastWords.of(error))])

    def _send(self, message: list[Any]) -> None:
        with self._guard, suppress(OSError):  # nobody listens any more
            self.connection.send_bytes(json.dumps(message).encode())


def main() -> None:
    """Wait for the order, and carry it out."""
    descriptor, parent, eager_on_cpu = map(int, sys.argv[1:])
    os.set_inheritable(descriptor, False)
    die_with(parent)
    multiprocessing.current_process().name = "EngineCore"  # in the lines of vLLM's log
    line = Line(Connection(descriptor))
    with suppress(ConfigError):  # the front says what is missing
        import_vllm(_MODULES, eager_on_cpu=bool(eager_on_cpu))
    try:
        order: Order = line.connection.recv()  # from the process that started this one
    except EOFError:
        return  # no engine is wanted after all
    _carry_out(order, line)


def _carry_out(order: Order, line: Line) -> None:
    """Run the core, and end the process."""
    status = 1
    try:
        _as_there(order.environment)
        _hand_on_logs(line, order.arguments["vllm_config"])
        _speak_when_dying(line)
        from dray.engine.vllm_adapter.core.tuned_scheduler import asking

        ranks_end_with_this_process()
        with asking(order.tuning, line.tell_tuned):
            order.target(**order.arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    except Exception as error:  # noqa: BLE001  process edge: vLLM has logged it
        line.say(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # vLLM has cleaned up; the interpreter's own end takes long, and complains of leaks


def _as_there(environment: dict[str, str]) -> None:
    """Take over the front's environment; Torch read its number of threads when it was imported."""
    os.environ.clear()
    os.environ.update(environment)
    if "torch" in sys.modules and "OMP_NUM_THREADS" in environment:
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))


def _hand_on_logs(line: Line, config: Any) -> None:
    """Have the front log what this process logs: there it is kept for the driver."""
    from vllm.v1.engine import core

    core.configure_logging(config.logging_config)
    core.configure_logging = lambda config: None  # it would take the handler away again
    for name in ("vllm", "dray"):
        logging.getLogger(name).addHandler(line)
    logging.getLogger(core.__name__).addFilter(without_error_text)


def _speak_when_dying(line: Line) -> None:
    """Have a core that breaks while it runs say why before it says that it is dead, and cleans up."""
    from vllm.v1.engine.core import EngineCoreProc

    send_dead = EngineCoreProc._send_engine_dead

    def said(core: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            line.say(error)
        send_dead(core)

    EngineCoreProc._send_engine_dead = said


if __name__ == "__main__":
    main()
