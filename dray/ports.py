"""Ports of this machine."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_KEPT = range(20_000, 30_000)
"""Not given to outgoing connections, as Linux comes, nor to Ray's workers and Kubernetes' services."""

_TRIES = 100


def lasting_port() -> int:
    """A port free on all addresses that no connection takes by chance, for a listener that comes later."""
    chance = random.SystemRandom()  # not what an engine, or a test, was seeded with
    for port in chance.sample(_KEPT, min(_TRIES, len(_KEPT))):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    with socket.socket() as probe:  # one that is free at the moment
        probe.bind(("", 0))
        free: int = probe.getsockname()[1]
        return free
