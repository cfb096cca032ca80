"""Whether anything listens where the head of a cluster is to be."""

from __future__ import annotations

import socket
import time

from dray.errors import ConfigError

_CONNECT_SECONDS = 2.0  # for one try
_START_SECONDS = 5.0  # for a head that is being started


def try_connection(address: str) -> None:
    """Make one connection to ``address`` (host:port), and close it.

    Raises:
        OSError: there is none; ConnectionRefusedError where its machine says that nothing listens there.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


def listens(address: str) -> bool:
    """Whether a connection to ``address`` (host:port) can be made."""
    try:
        try_connection(address)
    except OSError:
        return False
    return True


def refuse_silent(address: str) -> None:
    """Refuse the address of a cluster whose machine refuses each connection for some seconds.

    Anything less certain, such as a host that does not answer, is left to the joining.

    Raises:
        ConfigError: nothing listens there.
    """
    place = address.removeprefix("ray://")
    deadline = time.monotonic() + _START_SECONDS
    while place.rpartition(":")[2].isdigit():  # the address may be `auto`
        try:
            try_connection(place)
        except ConnectionRefusedError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"--cluster {address}: nothing listens there; is the head up, and is the port that of "
                    "`ray start --head --port`?"
                ) from error
            time.sleep(0.5)
            continue
        except OSError:
            pass
        return
