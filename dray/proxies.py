"""What the environment's proxies are not for: this machine itself."""

from __future__ import annotations

import os
from urllib.request import getproxies

_EXCEPTIONS = ("no_proxy", "NO_PROXY")  # some programs read one of them, some the other
_HERE = "127.0.0.1"


def loopback_exceptions() -> dict[str, str]:
    """Variables that keep connections to 127.0.0.1 away from proxies; none where no proxy is named.

    No library has such an exception by itself, and a proxy takes 127.0.0.1 for its own machine.
    """
    if not any(scheme != "no" for scheme in getproxies()):
        return {}
    known = next((found for name in _EXCEPTIONS if (found := os.environ.get(name))), "")
    told = {}
    for name in _EXCEPTIONS:
        listed = os.environ.get(name) or known
        there = {entry.strip() for entry in listed.split(",")}
        told[name] = listed if there & {_HERE, "*"} else ",".join(filter(None, (listed, _HERE)))
    return told
