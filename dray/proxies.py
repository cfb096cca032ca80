"""What the environment's proxies are not for: this machine itself, and the networks that it names."""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from urllib.request import getproxies, proxy_bypass

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


def is_excepted(netloc: str) -> bool:
    """Whether ``NO_PROXY`` names this host: by name, domain, address, or network (10.0.0.0/8)."""
    return bool(proxy_bypass(netloc)) or _in_named_network(netloc)


def _in_named_network(netloc: str) -> bool:
    """By the networks of ``NO_PROXY``, which urllib does not know; obstore, curl and Go do."""
    host = netloc.rpartition(":")[0] if netloc.rpartition(":")[2].isdigit() else netloc
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    for entry in getproxies().get("no", "").split(","):
        with suppress(ValueError):
            if "/" in entry and address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
    return False
