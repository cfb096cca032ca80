"""The driver's judgement of losses, beside attempts at shards that a test makes without a driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from types import TracebackType

from dray.driver.events import Event
from dray.driver.replicas.handle import Loss
from dray.driver.replicas.losses import Losses
from dray.errors import FencedError
from dray.store import JobLease, Store, open_store

_EVERY = 0.005


class Judging:
    """A context in which the losses that ``lost`` finds are judged, in a thread, as a driver's steps do.

    ``lost`` is asked again and again, and names each loss once. Its ``events`` are what the driver tells.
    """

    def __init__(self, store_url: str, lease: JobLease, lost: Callable[[Store], Collection[Loss]]) -> None:
        self.events: list[Event] = []
        self._url = store_url
        self._lost = lost
        self._losses = Losses(lease, self.events.append)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Judging:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with open_store(self._url, create=False) as store:
            while not self._over.wait(_EVERY):
                self._losses.add(self._lost(store))
                try:
                    self._losses.judge(store)
                except FencedError:  # as a driver ends
                    return
