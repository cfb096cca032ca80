"""What replicas wait for, and how long a job goes on without one that can take work."""

from __future__ import annotations

from collections.abc import Callable

from dray.cluster.base import START_SECONDS
from dray.driver.events import Event, ReplicasWait
from dray.driver.replicas.pool import ReplicaPool
from dray.errors import EngineStartError, JobPausedError


class Readiness:
    """Counts from when a replica was last ready, as far as the driver watched.

    ``awaits_spot`` says whether replicas are missing on purpose: their job has time to wait for spot.
    """

    def __init__(
        self, pool: ReplicaPool, emit: Callable[[Event], None], awaits_spot: Callable[[], bool]
    ) -> None:
        self._pool = pool
        self._emit = emit
        self._awaits_spot = awaits_spot
        self._ready_at = pool.watched()
        self._reason: str | None = None

    def look(self, *, awaited: bool) -> None:
        """Look at the pool. No replica is ``awaited`` where the job is to stop, or waits for something else.

        Without the store none is asked for, and while its model comes none can be ready. How long these may
        last is for others to say.

        Raises:
            EngineStartError: none was ready within ``START_SECONDS``, and none before.
            JobPausedError: none has been ready for as long, and rows may be answered already.
        """
        reason = self._pool.waiting()
        if reason != self._reason:
            self._reason = reason
            self._emit(ReplicasWait(reason=reason))
        now, begun = self._pool.watched(), bool(self._pool.starts())
        if self._pool.ready() or not awaited or (begun and self._awaits_spot()):
            self._ready_at = now
        if now - self._ready_at <= START_SECONDS:
            return
        if not begun:
            told = f"none of {self._pool.lanes} replicas is ready after {START_SECONDS:.0f} s"
            raise EngineStartError(": ".join(filter(None, [told, reason])))
        raise JobPausedError(
            f"none of {self._pool.lanes} replicas has been ready for {START_SECONDS / 60:.0f} minutes"
            + (f" ({reason})" if reason else "")
            + "; finished rows are kept: when there are nodes for them again, `dray resume JOB` goes on"
        )
