"""Asks this node's sources for notices, a thread each, and hands on what is new. It never raises."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Self

from dray.notices.notice import Notice, Source, SourceError

logger = logging.getLogger(__name__)

SHORTEST_PAUSE = 0.05
"""Seconds between two looks at a source that itself waits for news."""

LONGEST_PAUSE = 8.0
"""Seconds between two tries at a source that fails: a notice may come 30 s before the end."""


class Watcher:
    """Calls ``on_notice`` once for each notice, and again where its source had withdrawn it in between.

    Calls run in the watcher's threads, one at a time, and must be quick; what they raise is logged by name.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        on_notice: Callable[[Notice], None],
        *,
        rng: random.Random | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._on_notice = on_notice
        self._rng = rng or random.Random()  # noqa: S311  spreads load, guards nothing
        self._over = threading.Event()
        self._guard = threading.Lock()
        self._in_force: dict[Source, set[str]] = {source: set() for source in self._sources}  # their ids
        self._threads = [
            threading.Thread(target=self._watch, args=(source,), name=f"notices-{source.name}", daemon=True)
            for source in self._sources
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin; returns at once."""
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 1.0) -> None:
        """No callback begins after this, save one that runs already. A thread may wait on for its source."""
        self._over.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _watch(self, source: Source) -> None:
        failures = 0
        while not self._over.is_set():
            began = time.monotonic()
            try:
                found = source.poll()
            except Exception as error:  # noqa: BLE001  whatever it is, the next look may succeed
                failures += 1
                if failures == 1:
                    logger.warning("%s notices: %s; trying again", source.name, _told(error))
                self._over.wait(retry_pause(source.pause, failures, self._rng))
                continue
            if failures:
                logger.info("%s notices: answered again after %d failures", source.name, failures)
                failures = 0
            self._take(source, found)
            self._over.wait(max(SHORTEST_PAUSE, source.pause - (time.monotonic() - began)))

    def _take(self, source: Source, found: list[Notice]) -> None:
        with self._guard:
            before = self._in_force[source]
            present = {notice.id: notice for notice in found}
            self._in_force[source] = set(present)
            for id_, notice in present.items():
                if id_ not in before:
                    self._hand_on(notice)

    def _hand_on(self, notice: Notice) -> None:
        if self._over.is_set():
            return
        try:
            self._on_notice(notice)
        except Exception as error:  # noqa: BLE001  the next notice must be handed on too
            logger.error("%s notices: %s in a callback", notice.source, type(error).__name__)


def retry_pause(pause: float, failures: int, rng: random.Random) -> float:
    """Seconds until the next try after ``failures`` in a row: longer each time, not in step with others."""
    longest = min(LONGEST_PAUSE, max(pause, 0.5) * 2.0 ** min(failures, 10))
    return rng.uniform(longest / 2, longest)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, SourceError) else type(error).__name__
