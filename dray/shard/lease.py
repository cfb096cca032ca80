"""Hold a shard's lease while its rows run, and stop the run when it must stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dray.errors import (
    CancelledError,
    DrayError,
    ExpiredError,
    FencedError,
    LeaseLapsedError,
    StoreError,
    StoreFatalError,
)
from dray.store import ShardLease, StopSignals, Store

RENEW_EVERY = 15.0
STOP_BEFORE_EXPIRY = 15.0  # seconds; by the holder's own monotonic clock
LOOK_EVERY = 1.0
HEARTBEAT_SECONDS = 5.0  # well below `dray.engine.sessions.SILENCE_SECONDS`


class ShardLeaseKeeper:
    """Keeps a lease alive in a thread. ``on_stop`` ends the stream of results, from that thread.

    ``say`` tells the replica that this process lives, from a thread of its own.
    """

    def __init__(
        self, store: Store, lease: ShardLease, *, on_stop: Callable[[], None], say: Callable[[], None]
    ) -> None:
        self.lease = lease
        self._store = store
        self._on_stop = on_stop
        self._say = say
        self._renewed_at = self._told_at = time.monotonic()
        self._over = threading.Event()
        self._reason: DrayError | None = None
        self._guard = threading.Lock()
        # Three threads: a store that is away may keep the one that asks it for longer than the lease lasts,
        # and a Ray that is away the one that calls the replica.
        self._threads = [
            threading.Thread(target=work, name=f"lease-{lease.number}", daemon=True)
            for work in (self._keep, self._watch_clock, self._keep_beating)
        ]

    def __enter__(self) -> ShardLeaseKeeper:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=5)

    def renewed(self) -> None:
        """A commit extended the lease."""
        self._renewed_at = time.monotonic()

    def obey(self, signals: StopSignals) -> None:
        """Stop if the job is cancelled, its time over, or it was put to rest for another reason."""
        self._told_at = time.monotonic()
        if signals.cancelled:
            self._stop(CancelledError(f"job {self.lease.job_id} was cancelled"))
        elif signals.expired:
            self._stop(ExpiredError(f"the time of job {self.lease.job_id} is over"))
        elif signals.at_rest:
            self._stop(CancelledError(f"job {self.lease.job_id} has stopped"))

    def check(self) -> None:
        """Raise the reason for which the run was stopped, if it was."""
        if self._reason is not None:
            raise self._reason

    def _stop(self, reason: DrayError) -> None:
        with self._guard:
            if self._reason is not None:
                return
            self._reason = reason
        self._on_stop()

    def _keep(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            try:
                self._look()
            except (FencedError, StoreFatalError) as error:
                return self._stop(error)
            except StoreError:
                pass  # it is away: the lease runs on, and is given up in time
        return None

    def _watch_clock(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            if time.monotonic() - self._renewed_at > self.lease.ttl - STOP_BEFORE_EXPIRY:
                lapsed = f"shard {self.lease.number}: the store was away, and the lease could not be renewed"
                return self._stop(LeaseLapsedError(lapsed))
        return None

    def _keep_beating(self) -> None:
        while self._reason is None and not self._over.wait(HEARTBEAT_SECONDS):
            self._say()

    def _look(self) -> None:
        if time.monotonic() - self._told_at >= LOOK_EVERY:  # a commit tells it, too
            self.obey(self._store.stop_signals(self.lease.job_id))
        if time.monotonic() - self._renewed_at > RENEW_EVERY:
            self._store.renew_shard(self.lease)
            self.renewed()
