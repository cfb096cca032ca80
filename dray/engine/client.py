"""A replica as its callers see it, whether it runs behind Ray or in the same process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from dray.engine.protocol import EngineInfo
from dray.engine.replica import FLUSH_SECONDS, ReplicaStatus
from dray.engine.seam import ray_errors
from dray.errors import CancelledError
from dray.requests.model import Outcome

_ASK_EVERY = 2.0  # seconds between questions whether anybody still waits


class ReplicaClient(Protocol):
    """Feed rows, read results, stop a session. `Replica` itself is one."""

    name: str

    def feed(self, session: str, lines: list[bytes], last: bool = False) -> None:
        """Queue spool lines; ``last`` says that no more follow."""

    def results(self, session: str, rows: int, seconds: float = FLUSH_SECONDS) -> Iterator[list[Outcome]]:
        """Finished rows in micro-batches, until all that was fed is out.

        Raises:
            ReplicaLostError: the process or its node went away.
        """

    def abort(self, session: str) -> None:
        """Drop what is unfinished."""


class RayReplica:
    """A replica behind a Ray actor handle."""

    # Micro-batches that may wait in the object store before the replica pauses: backpressure for a
    # caller whose store is slow.
    _BACKPRESSURE = 16

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self.actor = actor
        self._fed: Counter[str] = Counter()  # calls of `feed` by session

    @classmethod
    def find(cls, name: str, namespace: str) -> RayReplica | None:
        """The replica of this name, or None while there is none."""
        import ray

        try:
            return cls(name, ray.get_actor(name, namespace=namespace))
        except ValueError:
            return None

    def ready(self, timeout: float, stopped: Callable[[], bool] = lambda: False) -> EngineInfo:
        """Wait until the engine can take work, at most ``timeout`` seconds.

        Raises:
            EngineStartError, ConfigError: it never will.
            ReplicaLostError: its process died first.
            TimeoutError: it is not there yet.
            CancelledError: ``stopped``, asked every two seconds, says that nobody wants it any more.
        """
        import ray

        deadline = time.monotonic() + timeout
        with ray_errors(self.name):
            answer = self.actor.ready.remote()
            while not ray.wait([answer], timeout=min(max(deadline - time.monotonic(), 0), _ASK_EVERY))[0]:
                if stopped():
                    raise CancelledError(f"stopped waiting for replica {self.name}")
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"replica {self.name} is not ready after {timeout:.0f} s")
            info: EngineInfo = ray.get(answer)
            return info

    def feed(self, session: str, lines: list[bytes], last: bool = False) -> None:
        """Queue spool lines; a failure shows up in ``results``."""
        # Numbered, because the actor has many threads, and a later call may overtake an earlier one.
        self.actor.feed.remote(session, lines, last, self._fed[session])
        self._fed[session] += 1
        if last:
            del self._fed[session]

    def results(self, session: str, rows: int, seconds: float = FLUSH_SECONDS) -> Iterator[list[Outcome]]:
        """Finished rows in micro-batches."""
        import ray

        with ray_errors(self.name):
            call = self.actor.results.options(
                num_returns="streaming", _generator_backpressure_num_objects=self._BACKPRESSURE
            )
            for reference in call.remote(session, rows, seconds):
                yield ray.get(reference)

    def abort(self, session: str) -> None:
        """Drop what is unfinished."""
        self.actor.abort.remote(session)

    def status(self, timeout: float) -> ReplicaStatus | None:
        """A look at the replica; None when it does not answer in time."""
        import ray

        with ray_errors(self.name):
            try:
                status: ReplicaStatus = ray.get(self.actor.status.remote(), timeout=timeout)
            except ray.exceptions.GetTimeoutError:
                return None
            return status
