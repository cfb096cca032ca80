"""What an address holds that is not for everyone to read, and where it must not lead.

Files and models are named by addresses without any secret (:func:`refuse_secret`). The URL of a database may
hold a login: :func:`names_login` and :func:`holds_password` find one, :func:`masked_url` shows the rest.
Of a command that others can read, :func:`shows_secret` judges each word.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from dray.errors import ConfigError
from dray.storage.url_options import is_shown

if TYPE_CHECKING:
    from sqlalchemy import URL

VARIABLE = "env:"
"""Before the name of an environment variable that holds an address."""

HUB = "hf://"
"""How the addresses of models and datasets of a hub begin."""

_OF_FILES = ("s3", "gs", "az", "hf", "http", "https", "file")  # no databases: names may hold a "?"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S*", re.IGNORECASE)
_LOGIN = re.compile(r":.*@|passw|\?.*=", re.IGNORECASE | re.DOTALL)
_ONE_SLASH = re.compile("(?:s3|gs|az|https?|hf):/(?!/)", re.IGNORECASE)

# Where a machine gets its own credentials, besides link-local addresses: AWS over IPv6, Azure, Alibaba.
_METADATA = frozenset(("fd00:ec2::254", "168.63.129.16", "100.100.100.200"))


def refuse_secret(address: str) -> None:
    """Refuse an address with a password or a signature in it: addresses are logged, and kept with the job.

    Raises:
        ConfigError: names the address without them; or it is one with a slip in it (:func:`refuse_slip`).
    """
    refuse_slip(address)
    place = without_secret(address)
    if place != address:
        raise ConfigError(
            f"{place}: the address holds a user, a password or a signature; give credentials by the "
            "environment or a block, or download the file"
        )


def refuse_slip(address: str) -> None:
    """Refuse ``s3:/bucket``, which would be a local folder of the name ``s3:``.

    Raises:
        ConfigError: says what was probably meant.
    """
    if _ONE_SLASH.match(address):
        scheme, _, rest = address.partition(":/")
        raise ConfigError(
            f"{address}: did you mean {scheme}://{rest}? a local folder of this name is ./{address}"
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


def names_login(url: str) -> bool:
    """Whether a database's URL may name a user or a password. Parameters that Prefect keeps must not."""
    _, separator, rest = url.partition("://")
    if not separator:
        return False
    if "@" in rest or "passw" in rest.lower():
        return True
    return not is_of_files(url) and "?" in rest and holds_password(url)


def shows_secret(word: str) -> bool:
    """Whether a word of a command shows a login or a signature: as a URL, as ``--option=URL``, or in a text.

    A text may cite web addresses, so that their queries count as signatures only where they stand alone.
    """
    if "://" not in word:
        return False
    value = word.partition("=")[2] if word.startswith("-") else word
    alone = _URL.match(value)
    if alone and (alone.end() == len(value) or not is_of_files(value)):  # a password may hold a blank
        return _shows_secret(value)
    found = _URL.findall(word)
    return any(_shows_secret(one.partition("?")[0] if is_of_files(one) else one) for one in found)


def _shows_secret(url: str) -> bool:
    return without_secret(url) != url if is_of_files(url) else names_login(url)


def is_of_files(url: str) -> bool:
    """Whether it is the address of files, and not of a database."""
    return url.partition("://")[0].lower() in _OF_FILES


def holds_password(url: str) -> bool:
    """Whether a database's URL holds a password, or an option that may be one (:mod:`url_options`).

    One that cannot be read does, where it may name a login.
    """
    parsed = _database_url(url)
    if parsed is None:
        return "://" in url and _is_suspect(url)
    return parsed.password is not None or bool(_hidden_options(parsed))


def masked_url(url: str) -> str:
    """A database's URL with what may be a secret replaced by ``***``, for messages. Never raises.

    Of a text that is no URL, and may be one without its scheme or a connection string of libpq, nothing is
    left; a path stays as it is.
    """
    parsed = _database_url(url)
    if parsed is None:
        return "***" if (_is_suspect(url) if "://" in url else _LOGIN.search(url)) else url
    if "=" in (parsed.host or ""):  # of an option that holds an "@", SQLAlchemy took the begin for a login
        return f"{parsed.drivername}://***"
    return _masked(parsed, _hidden_options(parsed))


def whole_login(url: str) -> str:
    """The URL of a database with all signs of its password written so that they do not end it.

    People write passwords as they are, and SQLAlchemy ends one at its first ``@``. It is the last one that
    does: no name of a host or a database holds any.
    """
    scheme, separator, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if not separator or not colon or "/" in user:
        return url
    return f"{scheme}://{user}:{quote(password, safe='%')}@{place}"


def identifying_url(url: str) -> str:
    """A database's URL without passwords, for digests: whatever else tells two databases apart is in it."""
    parsed = _database_url(url)
    if parsed is None:
        return url
    return _masked(parsed, [name for name in parsed.query if "passw" in name.lower()])


def _masked(url: URL, names: list[str]) -> str:
    return url.update_query_dict(dict.fromkeys(names, "***")).render_as_string(hide_password=True)


def _is_suspect(url: str) -> bool:
    """Whether a text that is no URL may hold a secret of one."""
    return any(sign in url.lower() for sign in ("@", "?", "passw"))


def _database_url(url: str) -> URL | None:
    if "://" not in url:
        return None
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(whole_login(url))
    except (ArgumentError, ValueError):
        return None


def _hidden_options(url: URL) -> list[str]:
    return [name for name, value in url.query.items() if not is_shown(name, value)]


def without_variable(address: str) -> str:
    """The address, or what the environment variable after ``env:`` holds: secrets stay out of commands.

    Raises:
        ConfigError: the variable is not set.
    """
    if not address.startswith(VARIABLE):
        return address
    name = address.removeprefix(VARIABLE)
    found = os.environ.get(name)
    if not found:
        raise ConfigError(f"environment variable {name} is not set")
    return found


def decoded_path(address: str, path: str) -> str:
    """The path of a web address as its server reads it: obstore itself writes the percent signs.

    Raises:
        OSError: it is not a text, or has a slash within a name, which obstore cannot ask for.
    """
    try:
        if "%2f" in path.lower():
            raise OSError(f"{address}: an address with %2F cannot be read; download the file")
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise OSError(f"{address}: its percent signs are no UTF-8; download the file") from None


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
