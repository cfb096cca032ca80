"""A replica as its callers see it, whether it runs behind Ray or in the same process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from dray.engine.ray_errors import ray_errors
from dray.engine.replica import FLUSH_SECONDS
from dray.errors import EngineError
from dray.requests.model import Outcome

_CHECK_SECONDS = 10.0
_WAIT_SECONDS = 1.0  # between looks at whether all that was fed has come through
_ABORT_TRIES = 3


class ReplicaClient(Protocol):
    """Feed rows, read results, stop a session. `Replica` itself is one."""

    name: str

    def check(self) -> None:
        """Whether work may come.

        Raises:
            ReplicaLostError, EngineDeadError: none may.
        """

    def feed(self, session: str, lines: list[bytes], last: bool = False) -> None:
        """Queue spool lines; ``last`` says that no more follow."""

    def results(self, session: str, rows: int, seconds: float = FLUSH_SECONDS) -> Iterator[list[Outcome]]:
        """Finished rows in micro-batches, until all that was fed is out.

        Raises:
            ReplicaLostError: the process or its node went away.
        """

    def heartbeat(self, session: str) -> None:
        """Tell the replica that the shard task is alive, also while idle. Never raises; returns at once."""

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
        self._feeding: dict[str, list[Any]] = {}  # calls of `feed` not known to be done, by session

    @classmethod
    def find(cls, name: str, namespace: str) -> RayReplica | None:
        """The replica of this name, or None while there is none.

        Raises:
            EngineError: Ray's head does not say whether there is one.
        """
        import ray

        try:
            with ray_errors(name):
                return cls(name, ray.get_actor(name, namespace=namespace))
        except ValueError:
            return None

    @property
    def actor_id(self) -> str:
        """Ray's, as hex."""
        found: str = self.actor._actor_id.hex()
        return found

    def check(self) -> None:
        """Whether work may come; a replica that says nothing for some seconds is no place for it."""
        import ray

        with ray_errors(self.name):
            ray.get(self.actor.check.remote(), timeout=_CHECK_SECONDS)

    def feed(self, session: str, lines: list[bytes], last: bool = False) -> None:
        """Queue spool lines; a failure shows up in ``results``."""
        # Numbered, because the actor has many threads, and a later call may overtake an earlier one.
        with ray_errors(self.name):  # much of it goes through the object store of this node
            call = self.actor.feed.remote(session, lines, last, self._fed[session])
        self._feeding.setdefault(session, []).append(call)
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
            stream = call.remote(session, rows, seconds)
            looked = time.monotonic()
            while True:
                ready, _ = ray.wait([stream], timeout=_WAIT_SECONDS)
                if not ready or time.monotonic() - looked > _WAIT_SECONDS:
                    self._check_fed(session)  # the replica would wait for ever for rows that never came
                    looked = time.monotonic()
                if ready:
                    try:
                        reference = next(stream)
                    except StopIteration:
                        break
                    yield ray.get(reference)
        self._feeding.pop(session, None)

    def _check_fed(self, session: str) -> None:
        import ray

        calls = self._feeding.get(session, [])
        done, pending = ray.wait(calls, num_returns=len(calls), timeout=0) if calls else ([], [])
        self._feeding[session] = pending
        ray.get(done)

    def heartbeat(self, session: str) -> None:
        """Tell the replica that this process lives; if the call is lost, the next one tells it."""
        with suppress(Exception):  # whatever it is, the stream of results says so
            self.actor.heartbeat.remote(session)

    def abort(self, session: str) -> None:
        """Drop what is unfinished. Tries three times, a second each."""
        import ray

        self._feeding.pop(session, None)
        for _ in range(_ABORT_TRIES):
            with suppress(EngineError):
                with ray_errors(self.name):
                    ray.get(self.actor.abort.remote(session), timeout=_WAIT_SECONDS)
                return
