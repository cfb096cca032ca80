"""The time of day for a run that lasts for days, whatever sets its machine's clock meanwhile."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first one counts a machine's sleep, too


class SteadyClock:
    """Seconds since 1970 that only move on: the machine's time when this ``began``, and the seconds since."""

    def __init__(self) -> None:
        self.began = time.time()
        self._since = time.clock_gettime(_CLOCK)

    def __call__(self) -> float:
        """Now."""
        return self.began + (time.clock_gettime(_CLOCK) - self._since)

    def ahead(self) -> float:
        """Seconds by which it is ahead of the machine's clock, since that was set; less than one is none.

        To be added to moments that are by the machine's clock, or by those of others which agree with it.
        """
        return round(self() - time.time())
