"""The replica: a process around one engine, as a Ray actor or called directly.

Rows come in through ``feed`` and leave through ``results``, a stream of micro-batches. The class
itself knows nothing of Ray, so tests and benchmarks can run it in their own process.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.engine.log_records import keep_log
from dray.engine.loop import StepLoop
from dray.engine.loop_stats import LoopStats
from dray.engine.own_place import own_group, own_node
from dray.engine.protocol import Engine, EngineInfo, EngineSpec
from dray.engine.ranks import nodes_of
from dray.engine.sessions import SILENCE_SECONDS
from dray.engine.start_errors import start_error
from dray.engine.tuning import BatchLimits
from dray.engine.watchdog import Watchdog
from dray.errors import ConfigError, DrayError, EngineDeadError, ReplicaLostError
from dray.failures.signs import out_of_memory
from dray.requests.model import Outcome

if TYPE_CHECKING:
    from dray.engine.followers import Followers

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.25  # the longest a finished row waits for its micro-batch
TRACE_VARIABLE = "DRAY_TRACE_DIR"  # set: each replica appends the index of every row it admits
ENGINE_DEAD_EXIT = 71
LAST_WORDS_SECONDS = 0.5  # for the sessions' readers to get the reason, before the process exits
_PART_SECONDS = 5.0  # for an engine's part on another node to be known dead, once the engine failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """A look at a replica. ``running`` rows are inside the engine, ``waiting`` before it.

    ``began`` is when this process began (seconds since 1970): a replacement has another one.
    """

    name: str
    node: str
    pid: int
    began: float
    running: int
    waiting: int
    sessions: int
    stats: LoopStats
    log: list[tuple[int, str, str]]  # level, logger, message: what was logged since the last look


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a replica runs, and when its process began and its engine was ready (seconds since 1970)."""

    node_id: str
    host: str
    process: float
    ready: float


class Replica:
    """Owns a step loop and its engine.

    The engine is built in the background: ``ready`` waits for it. When the engine dies the process
    exits at once, because an engine that failed once fails every later caller too (ray#59522). ``silence``
    is how many seconds a shard task in another process may say nothing before its session ends.
    """

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        *,
        exit_when_dead: bool = True,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self.name = name
        spec = replace(spec, replica=name)
        self._began = time.time()
        self._exit_when_dead = exit_when_dead
        self._log = keep_log()
        folder = os.environ.get(TRACE_VARIABLE)
        self._group = _group_of(spec)
        self._followers: Followers | None = None
        trace = Path(folder) / f"{name.replace('/', '-')}-{os.getpid()}.trace" if folder else None
        self._loop = StepLoop(lambda: self._build(spec), on_dead=self._die, trace=trace, silence=silence)
        self._loop.start()
        threading.Thread(
            target=self._watch, args=(spec.stall_seconds,), name="dray-watchdog", daemon=True
        ).start()

    def ready(self) -> EngineInfo:
        """Wait until the engine can take work.

        Raises:
            EngineStartError: it never will.
            ConfigError: its arguments cannot be used.
        """
        self._loop.started.wait()
        error = self._loop.start_error
        if error is not None and (lost := self._lost_part(_PART_SECONDS)) is not None:
            error = lost  # the engine fails where a part of it does
        if error is not None:
            raise start_error(error) from None
        assert self._loop.info is not None
        return self._loop.info

    def check(self) -> None:
        """Whether work may come.

        Raises:
            EngineDeadError: the engine is dead, and the process about to be.
            ReplicaLeftError: it is being drained.
        """
        self._loop.check()

    def feed(self, session: str, lines: list[bytes], last: bool = False, number: int | None = None) -> None:
        """Queue spool lines for ``session``; ``last`` says that no more follow.

        ``number`` counts the calls from 0: behind Ray they run in several threads, in any order.
        """
        self._loop.feed(session, lines, last=last, number=number)

    def results(self, session: str, rows: int, seconds: float = FLUSH_SECONDS) -> Iterator[list[Outcome]]:
        """The finished rows of ``session`` in micro-batches of up to about ``rows``."""
        yield from self._loop.batches(session, rows=rows, seconds=seconds)

    def heartbeat(self, session: str) -> None:
        """The shard task of ``session`` lives."""
        self._loop.heartbeat(session)

    def abort(self, session: str) -> None:
        """Drop what is unfinished of ``session``."""
        self._loop.abort(session)

    def status(self) -> ReplicaStatus:
        """Load, counters, and the log records since the last call."""
        running, waiting = self._loop.load()
        return ReplicaStatus(
            name=self.name,
            node=socket.gethostname(),
            pid=os.getpid(),
            began=self._began,
            running=running,
            waiting=waiting,
            sessions=self._loop.sessions,
            stats=self._loop.stats,
            log=self._log.take(),
        )

    def drain(self, seconds: float) -> None:
        """Take in nothing more, and end every session within ``seconds``; returns at once."""
        self._loop.drain(seconds)

    def whereabouts(self) -> Whereabouts:
        """Where this process runs, and since when. Waits until the engine can take work, or never will."""
        self._loop.started.wait()
        return Whereabouts(
            node_id=own_node(), host=socket.gethostname(), process=self._began, ready=self._loop.ready_at
        )

    def stop(self) -> None:
        """End the loop and release the engine."""
        self._loop.stop()
        self._loop.join(timeout=30)

    def _watch(self, stall_seconds: float) -> None:
        """End an engine that stands still: a step that never returns, or steps that bring nothing.

        And end the sessions whose shard tasks died without a word.
        """
        every = min(1.0, stall_seconds / 4)
        watchdog = Watchdog(stall_seconds, every)
        while True:
            time.sleep(every)
            if (lost := self._lost_part()) is not None:
                if not self._loop.fail_start(lost):
                    self._die_of(lost)
                return
            idle = self._loop.idle_seconds()
            if watchdog.stands_still(idle, time.monotonic()):
                error = EngineDeadError(f"the engine stood still for {idle:.0f} s", stuck=True)
                self._loop.fail(error)
                self._die(error)
                return
            self._loop.end_silent(watchdog.late)

    def _build(self, spec: EngineSpec) -> Engine:
        """The engine, whose parts on other nodes start first."""
        if self._group is not None:
            from dray.engine.followers import Followers

            self._followers = Followers(self.name, spec, self._group)
            engine = build_engine(self._followers.leader, self._followers.take_limits)
        else:
            engine = build_engine(spec)
        self._log.rows_come()
        return engine

    def _lost_part(self, seconds: float = 0.0) -> DrayError | None:
        """Why a part of the engine on another node ended, if one did; where it was lost, so is this."""
        lost = None if self._followers is None else self._followers.ended(seconds)
        if isinstance(lost, ReplicaLostError):
            self._die_of(lost)
        return lost

    def _die_of(self, lost: DrayError) -> None:
        """The engine lost a part, and cannot go on."""
        end = EngineDeadError(str(lost), oom=out_of_memory(lost) or bool(getattr(lost, "oom", False)))
        self._loop.fail(end)
        self._die(end)

    def _die(self, error: BaseException) -> None:
        logger.error("engine dead: %s", type(error).__name__)
        if self._exit_when_dead:
            print(f"dray: engine dead ({type(error).__name__}), exiting", file=sys.stderr, flush=True)  # noqa: T201
            time.sleep(LAST_WORDS_SECONDS)
            os._exit(ENGINE_DEAD_EXIT)


def build_engine(spec: EngineSpec, tell_limits: Callable[[BatchLimits], None] | None = None) -> Engine:
    """Build the engine that ``spec`` names; ``tell_limits`` hands its batches' size to its other nodes.

    Raises:
        ConfigError: there is no engine of that name, or vLLM is not installed.
    """
    if spec.name == "simulated":
        from dray.engine.simulated import SimulatedEngine

        return SimulatedEngine(spec)
    if spec.name == "vllm":
        from dray.engine.vllm_adapter.engine import VllmEngine

        return VllmEngine(spec, tell_limits)
    raise ConfigError(f"unknown engine {spec.name!r}; dray has 'vllm' and 'simulated'")


def _group_of(spec: EngineSpec) -> Any:
    """The placement group of an engine on several nodes; None for one on this node alone."""
    return None if nodes_of(spec.arguments) == 1 else own_group()


def actor_class() -> Any:
    """``Replica`` as a Ray actor class; Ray is imported on the call."""
    import ray

    # Sessions each hold a thread while their results stream; feeding and looking need some more.
    return ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=64)(Replica)
