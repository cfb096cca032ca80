"""What an address must not hold, and where it must not lead."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from dray.errors import ConfigError

# Where a machine gets its own credentials, besides link-local addresses: AWS over IPv6, Azure, Alibaba.
_METADATA = frozenset(("fd00:ec2::254", "168.63.129.16", "100.100.100.200"))


def refuse_secret(address: str) -> None:
    """Refuse an address with a password or a signature in it: addresses are logged, and kept with the job.

    Raises:
        ConfigError: names the address without them.
    """
    place = without_secret(address)
    if place != address:
        raise ConfigError(
            f"{place}: the address holds a user, a password or a signature; give credentials by the "
            "environment or a block, or download the file"
        )


def without_secret(address: str) -> str:
    """``address`` without user, password and, on the web, the query. Names of objects may hold a ``?``."""
    scheme, separator, rest = address.partition("://")
    if not separator or scheme.lower() == "file":
        return address
    web = scheme.lower() in ("http", "https")
    authority, slash, path = rest.partition("/")
    if web and not slash:
        authority = authority.partition("?")[0]
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path.partition('?')[0] if web else path}"


def refuse_metadata(address: str) -> None:
    """Refuse a web address that leads to a cloud's metadata service, by whatever name.

    A server that redirects there, or a name that changes after this look, is not caught: that is for the
    network, and for metadata services that want a token.

    Raises:
        OSError: it does.
    """
    host = urlsplit(address).hostname or ""
    try:
        found = {str(info[4][0]).split("%")[0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return  # the resolver does not know it: the request will report that
    for text in found:
        known = ipaddress.ip_address(text)
        known = getattr(known, "ipv4_mapped", None) or known
        if known.is_link_local or str(known) in _METADATA:
            raise OSError(f"{host} is a cloud's metadata service, or beside it; dray reads nothing there")
