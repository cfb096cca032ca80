"""More workers of pytest-xdist than cores: those beyond begin a test only while the cores have time for it.

Most tests wait for processes, so as many workers as cores leave half of the cores idle. But three engines
on two cores would make each other late. ``make -l`` has the same rule for the same reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil

LOOKS_EVERY = 5.0
"""Seconds for which a worker trusts its last look: a thousand short tests are not worth a look each."""

IDLE_CORES = 0.5
"""What two tests leave idle on two cores while they wait for processes, and a third one can use."""

PATIENCE = 120.0
"""Seconds after which a test begins on a busy machine, too: other work there may never end."""


class SpareWorker:
    """Lets a worker's tests begin when ``idle_cores()``, averaged over a second, has room for them."""

    def __init__(
        self,
        idle_cores: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._idle_cores = idle_cores
        self._clock = clock
        self._looked = -LOOKS_EVERY

    def wait(self) -> float:
        """Return once a test may begin: the seconds that it took."""
        began = self._clock()
        if began - self._looked < LOOKS_EVERY:
            return 0.0
        while self._idle_cores() < IDLE_CORES and self._clock() - began < PATIENCE:
            pass
        self._looked = self._clock()
        return self._looked - began


def spare_worker(worker: str | None) -> SpareWorker | None:
    """The gate for a worker of pytest-xdist ("gw0", ...), or None where it has a core of its own."""
    cores = len(os.sched_getaffinity(0))
    if worker is None or int(worker.removeprefix("gw")) < cores:
        return None
    return SpareWorker(lambda: cores * (1 - psutil.cpu_percent(interval=1.0) / 100))
