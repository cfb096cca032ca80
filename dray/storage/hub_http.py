"""The pages and files of a hub over HTTP: redirects, signed addresses, the user's token, pages that go on.

Repositories lie there as on the Hugging Face hub. For a renamed one the hub redirects to its new name, for
large files to a signed address elsewhere. The token goes to the hub alone. ``HF_ENDPOINT`` names another hub;
``HF_TOKEN`` (or the file that ``hf auth login`` writes) identifies the user. https://huggingface.co/docs/hub/api
"""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from dray.storage.addresses import refuse_metadata, without_secret
from dray.storage.faults import BusyError

GATED = "GatedRepo"
"""A hub's own word for a repository that has conditions; its list of files is there for all."""

_TOKEN = re.compile("[!-~]*")  # what a header takes (RFC 6750 knows fewer signs)
_NEXT = re.compile(r'<([^>]*)>[^,]*;\s*rel="?next"?')  # in a Link header (RFC 8288)
_SPENT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")  # RateLimit: "api";r=0;t=55
_SIGNED = re.compile(r"[?&][\w-]*sig(nature)?=", re.IGNORECASE)  # in an address, for one method alone
_FORMER = "HUGGING_FACE_HUB_TOKEN"  # huggingface_hub reads it still
_TIMEOUT = 30.0
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a file's bytes are now, and the headers to ask with. The address may be signed: a secret.

    ``size`` and ``etag`` are what the hub says of the file itself; None and empty where it does not.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    size: int | None
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What is at an address of the hub, and the address of the page after it, if there is one."""

    body: bytes
    following: str | None


class DeniedError(PermissionError):
    """The server does not let this user read. ``reason`` is the hub's own word for it, if it gives one."""

    def __init__(self, told: str, reason: str) -> None:
        super().__init__(told)
        self.reason = reason


def gated(what: str, page: str) -> str:
    """What to do about a repository whose conditions this user has not accepted; ``page`` shows them."""
    return (
        f"{what} is gated: accept its conditions at {without_secret(page)}, and set HF_TOKEN to a token of "
        "that account"
    )


class MissingError(FileNotFoundError):
    """There is no such page or file. ``reason`` is the hub's own word for what is missing."""

    def __init__(self, told: str, reason: str) -> None:
        super().__init__(told)
        self.reason = reason


class MovedError(OSError):
    """The file is at another address by now."""


def endpoint() -> str:
    """The hub's address."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def shown_endpoint() -> str:
    """The hub's address for messages."""
    return without_secret(endpoint())


def page(url: str, name: str) -> Page:
    """What is at an address of the hub, or where it redirects to; the token stays at the hub.

    Raises:
        PermissionError, FileNotFoundError, BusyError, OSError: as :func:`find` does.
    """
    hub = _server(endpoint())
    if _server(url) != hub:  # as the page before it said
        _refuse_target(url, name)
    for _ in range(_MOST_REDIRECTS):
        with _answer(url, _authorization() if _server(url) == hub else {}, name) as answer:
            target = _target(answer, url)
            if target is None:
                after = _NEXT.search(", ".join(answer.headers.get_all("Link", [])))
                following = None if after is None else _following(url, after[1])
                return Page(body=bytes(answer.read()), following=following)
        _refuse_target(target, name)
        url = target
    raise OSError(f"{name}: redirected again and again")


def _following(url: str, link: str) -> str:
    """The page that ``link`` names. Mirrors hand on links of the hub behind them, which may be away."""
    target = urljoin(url, link)
    parts = urlsplit(target)
    return f"{endpoint()}{parts.path}?{parts.query}" if parts.path.startswith("/api/") else target


def find(url: str, name: str) -> Place:
    """Where the bytes of a hub's file are.

    Raises:
        PermissionError: this user may not read it.
        FileNotFoundError: there is none.
        BusyError: the hub wants to be asked later.
        OSError: the hub does not say.
    """
    hub, size, etag = _server(url), "", ""
    for _ in range(_MOST_REDIRECTS):
        headers = _authorization() if _server(url) == hub else {}
        target, said = _look(url, headers, name, at_hub=_server(url) == hub)
        size = said.get("X-Linked-Size") or size or (not target and said.get("Content-Length")) or ""
        etag = said.get("X-Linked-Etag") or etag or (not target and said.get("ETag")) or ""
        if target is not None:
            _refuse_target(target, name)
            if not _SIGNED.search(target):
                url = target
                continue
            url, headers = target, {}
        known = int(size) if size.isdecimal() else None
        return Place(url=url, headers=headers, size=known, etag=etag.removeprefix("W/").strip('"'))
    raise OSError(f"{name}: redirected again and again")


def _look(
    url: str, headers: Mapping[str, str], name: str, *, at_hub: bool
) -> tuple[str | None, Message[str, str]]:
    """Where a file's address redirects, and what its answer says.

    A server to which the hub redirects may answer nothing of the kind, and have the bytes all the same.
    """
    try:
        with _answer(url, headers, name, method="HEAD") as answer:
            return _target(answer, url), answer.headers
    except OSError as error:
        of_hub = isinstance(error, DeniedError | MissingError) and error.reason  # of one behind a mirror
        if at_hub or of_hub or isinstance(error, BusyError):
            raise
        return None, Message()


def read_range(place: Place, start: int, end: int, name: str) -> bytes:
    """The bytes [``start``, ``end``) of a file that is at ``place``.

    Raises:
        MovedError: the server redirects.
        OSError: they cannot be read, or are other bytes than were asked for.
    """
    with _answer(place.url, {**place.headers, "Range": f"bytes={start}-{end - 1}"}, name) as answer:
        if answer.status in _REDIRECTS:
            raise MovedError(f"{name}: it is elsewhere by now")
        given = answer.headers.get("Content-Range", "")
        as_asked = answer.status == 206 and given.startswith(f"bytes {start}-")
        if not as_asked and (answer.status, start) != (200, 0):
            raise OSError(f"{name}: the server sent another range than was asked for")
        whole = given.rpartition("/")[2]
        if whole.isdecimal() and place.size is not None and int(whole) != place.size:
            raise OSError(
                f"{name}: the server has {int(whole):,} bytes of it, and the hub says {place.size:,}"
            )
        body = bytes(answer.read(end - start))
    if len(body) < end - start:
        raise OSError(f"{len(body):,} bytes came for {end - start:,}")
    return body


def size_at(place: Place, name: str) -> int | None:
    """The size of the file that is at ``place``, by a request for a byte: proxies may take it out of a HEAD.

    Raises:
        OSError: it cannot be read.
    """
    with _answer(place.url, {**place.headers, "Range": "bytes=0-0"}, name) as answer:
        whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
        return int(whole) if whole.isdecimal() else None


def web_address(url: str, name: str) -> str:
    """Where a web server redirects those who ask for ``url``, which may be a signed address: a secret.

    It is asked as for a file (some answer no HEAD, some sign for one method), and for one byte.

    Raises:
        PermissionError, FileNotFoundError, BusyError, OSError: as :func:`find` does.
    """
    for _ in range(_MOST_REDIRECTS):
        with _answer(url, {"Range": "bytes=0-0"}, name) as answer:
            target = _target(answer, url)
        if target is None:
            return url
        _refuse_target(target, name)
        url = target
    raise OSError(f"{name}: redirected again and again")


def _refuse_target(target: str, name: str) -> None:
    """Refuse to go on to what is no web server, or is a cloud's metadata service."""
    if not target.startswith(("https://", "http://")):  # urllib would open files, too
        raise OSError(f"{name}: redirected to {urlsplit(target).scheme}:")
    refuse_metadata(target)


def _authorization() -> dict[str, str]:
    """The user's token, as a header.

    Raises:
        PermissionError: it cannot be one. Said here: http.client quotes a header that it refuses.
    """
    token, place = os.environ.get("HF_TOKEN", "").strip(), "HF_TOKEN"
    if not token:
        token, place = os.environ.get(_FORMER, "").strip(), _FORMER
    if not token and (file := _token_file()).is_file():
        token, place = file.read_text(errors="replace").strip(), str(file)
    if not _TOKEN.fullmatch(token):
        raise PermissionError(
            f"{place} holds more than a token: a space, a line end or the like; set it again"
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def _token_file() -> Path:
    """Where ``hf auth login`` keeps the token (huggingface_hub 2.4, ``constants.py``)."""
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    named = os.path.expandvars(os.environ.get("HF_TOKEN_PATH") or f"{home}/token")
    return Path(os.path.expanduser(named))  # noqa: PTH111  raises for no user


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: urllib would send the token along."""

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message
    ) -> Any:
        """The answer itself."""
        return fp

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


_opener = urllib.request.build_opener(_NoRedirect)


@contextmanager
def _answer(url: str, headers: Mapping[str, str], name: str, *, method: str = "GET") -> Iterator[Any]:
    """The answer of a server, a redirect too; every error is an OSError that calls it ``name``."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310
    try:
        with _opener.open(request, timeout=_TIMEOUT) as answer:
            yield answer
    except urllib.error.HTTPError as error:
        raise _refusal(error.code, name, error.headers) from None
    except urllib.error.URLError as error:
        raise OSError(f"{name}: {getattr(error.reason, 'strerror', None) or error.reason}") from None
    except http.client.HTTPException as error:
        raise OSError(f"{name}: {type(error).__name__}") from None


def _refusal(status: int, name: str, headers: Message) -> OSError:
    reason = headers.get("X-Error-Code", "")
    if status in (401, 403):
        return DeniedError(f"not allowed: {name} (HTTP {status}); is HF_TOKEN set?", reason)
    if status == 404:
        return MissingError(f"no such file: {name}", reason)
    if status == 429 or status >= 500:
        return BusyError(f"{name}: HTTP {status}", _pause(headers))
    return OSError(f"{name}: HTTP {status}")


def _pause(headers: Message) -> float | None:
    """Seconds after which the server wants to be asked again, where it says so."""
    after, rate = headers.get("Retry-After", ""), _SPENT.search(headers.get("RateLimit", ""))
    if after.isdecimal():
        return float(after)
    return None if rate is None else float(rate[1])


def _target(answer: Any, url: str) -> str | None:
    """Where an answer from ``url`` redirects the client; None if it is no redirect."""
    location = answer.headers.get("Location") if answer.status in _REDIRECTS else None
    return None if location is None else urljoin(url, location)


def _server(url: str) -> tuple[str, str]:
    """The server that gets what is sent to ``url``: scheme, and host with port."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
