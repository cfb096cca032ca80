"""SIGTERM as a notice: what Kubernetes, systemd and people send before they kill."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from dray.spot.notices import SOON, Kind, Notice


class TermSource:
    """Notes the first SIGTERM, and lets whoever handled it before handle it still.

    Where nobody did, the process lives on, and who installed this ends it: ``grace`` seconds are left.
    """

    name = "sigterm"
    pause = 0.25  # it looks at one attribute

    def __init__(
        self, grace: Callable[[], float] = lambda: SOON, clock: Callable[[], float] = time.time
    ) -> None:
        self._grace = grace
        self._clock = clock
        self._at: float | None = None

    def install(self) -> bool:
        """Take over SIGTERM; False outside the main thread, where Python allows no handlers."""
        if threading.current_thread() is not threading.main_thread():
            return False
        before = signal.getsignal(signal.SIGTERM)

        def handle(number: int, frame: FrameType | None) -> None:
            # No lock and no log: this interrupts any line of the main thread, also one that holds them.
            if self._at is None:
                self._at = self._clock()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, handle)
        return True

    def poll(self) -> list[Notice]:
        """The notice, once the signal came."""
        if self._at is None:
            return []
        return [
            Notice(
                source=self.name,
                kind=Kind.TERM,
                action="SIGTERM",
                deadline=self._at + self._grace(),
                seen_at=self._at,
                id="sigterm",
            )
        ]
