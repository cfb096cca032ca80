"""Whether anything listens where the head of a cluster is to be."""

from __future__ import annotations

import socket
import time

from dray.errors import ConfigError

_CONNECT_SECONDS = 2.0  # for one try
_START_SECONDS = 5.0  # for a head that is being started
_LOOK_SECONDS = 0.5


def _connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


def listens(address: str) -> bool:
    """Whether a connection to ``address`` (host:port) can be made."""
    try:
        _connect(address)
    except OSError:
        return False
    return True


def refuse_silent(address: str) -> None:
    """Refuse the address of a cluster whose machine refuses each connection for some seconds.

    Anything less certain, such as a host that does not answer, is left to the joining.

    Raises:
        ConfigError: nothing listens there.
    """
    if not address.rpartition(":")[2].isdigit():  # such as `auto`
        return
    deadline = time.monotonic() + _START_SECONDS
    while _refuses(address):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"--cluster {address}: nothing listens there; is the head up, and is the port that of "
                "`ray start --head --port`?"
            )
        time.sleep(_LOOK_SECONDS)


def _refuses(address: str) -> bool:
    try:
        _connect(address)
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False
