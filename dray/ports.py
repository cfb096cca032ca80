"""Ports of this machine."""

from __future__ import annotations

import random
import socket

_KEPT = range(20_000, 30_000)
"""Not given to outgoing connections, as Linux comes, nor to Ray's workers and Kubernetes' services."""

_TRIES = 100


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on at this address of the machine, a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def lasting_port() -> int:
    """A port free on all addresses that no connection takes by chance, for a listener that comes later."""
    chance = random.SystemRandom()  # not what an engine, or a test, was seeded with
    for port in chance.sample(_KEPT, min(_TRIES, len(_KEPT))):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return free_port("")
