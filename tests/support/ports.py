"""A loopback port for a server that comes back on the same one."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 20_000, 32_000
"""Above the ports of Ray's workers, below those that the kernel gives to outgoing connections."""


def free_port() -> int:
    """A port that no process listens on, and that no outgoing connection takes before the server does."""
    for port in random.SystemRandom().sample(range(_FIRST, _LAST), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"found no free port from {_FIRST} to {_LAST}")
