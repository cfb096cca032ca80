"""How many cores of the machine work while a benchmark runs: whether these or something else is the limit."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType

_EVERY = 0.25
_TICK = os.sysconf("SC_CLK_TCK")


class CoresWatch:
    """Samples the processor time of the whole machine (``/proc/stat``) inside its block."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> CoresWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def busiest(self, seconds: float) -> float:
        """Cores that worked in the busiest stretch of so many seconds, on average; 0: none is as long."""
        found = 0.0
        last = 0
        for first, (began, before) in enumerate(self._samples):
            last = max(last, first)
            while last < len(self._samples) and self._samples[last][0] - began < seconds:
                last += 1
            if last == len(self._samples):
                break
            ended, after = self._samples[last]
            found = max(found, (after - before) / (ended - began))
        return found

    def _sample(self) -> None:
        while not self._over.wait(_EVERY):
            self._samples.append((time.monotonic(), _busy()))


def _busy() -> float:
    """Seconds that all cores together have worked since the machine began."""
    user, nice, system, _idle, _wait, interrupts, soft, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft) / _TICK
