"""Model repositories laid out as on the Hugging Face hub: ``hf://ORG/NAME[@REVISION]``.

The revision becomes a commit when the model is looked at, so what is read later is that commit. For a renamed
repository the hub redirects to its new name, for large files to a signed address elsewhere. An old signed
address is asked for again. The token goes to the hub alone. ``HF_ENDPOINT`` names another hub; ``HF_TOKEN``
(or the file that ``hf auth login`` writes) identifies the user. https://huggingface.co/docs/hub/api
"""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urljoin, urlsplit

from dray.errors import ConfigError
from dray.storage.addresses import refuse_metadata
from dray.weights.source.manifest import ModelFile
from dray.weights.source.retries import BusyError, with_retries

SCHEME = "hf://"
_NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_TOKEN = re.compile("[!-~]*")  # what a header takes (RFC 6750 knows fewer signs)
_TIMEOUT = 30.0
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository at one commit, and its files by their names from its top folder."""

    name: str
    commit: str
    files: Mapping[str, ModelFile]

    @property
    def uri(self) -> str:
        """Its pinned URI."""
        return f"{SCHEME}{self.name}@{self.commit}"


def is_hub(uri: str) -> bool:
    """Whether it names a repository of a hub."""
    return uri.startswith(SCHEME)


def look(uri: str) -> Repository:
    """The repository as it is now.

    Raises:
        ConfigError: there is none, or this user may not read it.
    """
    match = _NAME.fullmatch(uri.rstrip("/"))
    if match is None:
        raise ConfigError(f"model {uri}: write it as hf://ORG/NAME or hf://ORG/NAME@REVISION")
    name, revision = match[1], match[2] or "main"
    page = f"{_endpoint()}/api/models/{name}/revision/{quote(revision, safe='')}?blobs=true"
    try:
        found = json.loads(with_retries(lambda: _page(page, uri)))
        commit = str(found["sha"])
        files = {entry["rfilename"]: _file(name, commit, entry) for entry in found["siblings"]}
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(
            f"model {uri}: no such repository or revision, or not for us to read ({error})"
        ) from None
    except OSError as error:
        raise ConfigError(f"model {uri}: the hub at {_endpoint()} does not answer: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"model {uri}: what answers at {_endpoint()} is no hub") from None
    return Repository(name=name, commit=commit, files=files)


def read(file: ModelFile, start: int, end: int) -> bytes:
    """The bytes [``start``, ``end``) of a file, for the few that are read before a fetch.

    Raises:
        OSError: they cannot be read.
    """
    place, headers = address(file)
    with _answer(place, {**headers, "Range": f"bytes={start}-{end - 1}"}, file.name) as answer:
        if answer.status in _REDIRECTS:
            raise OSError(f"{file.name}: it is elsewhere by now")
        body = bytes(answer.read(end - start + 1))
    if len(body) < end - start:
        raise OSError(f"{len(body):,} bytes came for {end - start:,}")
    return body[: end - start]


def address(file: ModelFile) -> tuple[str, dict[str, str]]:
    """Where a file's bytes are now, and the headers to ask with. The address may be signed: a secret.

    Raises:
        PermissionError: this user may not read it.
        FileNotFoundError: there is none.
        BusyError: the hub wants to be asked later.
        OSError: the hub does not say.
    """
    assert file.url is not None
    url = file.url
    for _ in range(_MOST_REDIRECTS):
        with _answer(url, _authorization(), file.name, method="HEAD") as answer:
            target = _target(answer, url)
        if target is None:
            return url, _authorization()
        _refuse_target(target, file.name)
        if _server(target) != _server(file.url) or "Signature=" in target:
            return target, {}
        url = target
    raise OSError(f"{file.name}: redirected again and again")


def web_address(url: str, name: str) -> str:
    """Where a web server redirects those who ask for ``url``, which may be a signed address: a secret.

    It is asked as for a file (some answer no HEAD, some sign for one method), and for one byte.

    Raises:
        PermissionError, FileNotFoundError, BusyError, OSError: as :func:`address` does.
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
    """Refuse a redirect to what is no web server, or is a cloud's metadata service."""
    if not target.startswith(("https://", "http://")):  # urllib would open files, too
        raise OSError(f"{name}: redirected to {urlsplit(target).scheme}:")
    refuse_metadata(target)


def _file(name: str, commit: str, entry: Mapping[str, Any]) -> ModelFile:
    lfs = entry.get("lfs") or {}
    return ModelFile(
        name=entry["rfilename"],
        size=int(entry["size"]),
        etag="",  # the commit pins it
        sha256=str(lfs.get("sha256", "")),
        url=f"{_endpoint()}/{name}/resolve/{commit}/{quote(entry['rfilename'])}",
    )


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _authorization() -> dict[str, str]:
    """The user's token, as a header.

    Raises:
        PermissionError: it cannot be one. Said here: http.client quotes a header that it refuses.
    """
    token, place = os.environ.get("HF_TOKEN", "").strip(), "HF_TOKEN"
    file = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface") / "token"
    if not token and file.is_file():
        token, place = file.read_text(errors="replace").strip(), str(file)
    if not _TOKEN.fullmatch(token):
        raise PermissionError(
            f"{place} holds more than a token: a space, a line end or the like; set it again"
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


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
        raise _refusal(error.code, name, error.headers.get("Retry-After")) from None
    except urllib.error.URLError as error:
        raise OSError(f"{name}: {error.reason}") from None
    except http.client.HTTPException as error:
        raise OSError(f"{name}: {type(error).__name__}") from None


def _refusal(status: int, name: str, after: str | None) -> OSError:
    if status in (401, 403):
        return PermissionError(f"not allowed: {name} (HTTP {status}); is HF_TOKEN set?")
    if status == 404:
        return FileNotFoundError(f"no such file: {name}")
    if status == 429 or status >= 500:
        return BusyError(f"{name}: HTTP {status}", float(after) if after and after.isdigit() else None)
    return OSError(f"{name}: HTTP {status}")


def _target(answer: Any, url: str) -> str | None:
    """Where an answer from ``url`` redirects the client; None if it is no redirect."""
    location = answer.headers.get("Location") if answer.status in _REDIRECTS else None
    return None if location is None else urljoin(url, location)


def _server(url: str) -> tuple[str, str]:
    """The server that gets what is sent to ``url``: scheme, and host with port."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _page(url: str, name: str) -> bytes:
    """What is at an address of the hub, or where it redirects to; the token stays at the hub."""
    first = _server(url)
    for _ in range(_MOST_REDIRECTS):
        with _answer(url, _authorization() if _server(url) == first else {}, name) as answer:
            target = _target(answer, url)
            if target is None:
                return bytes(answer.read())
        _refuse_target(target, name)
        url = target
    raise OSError(f"{name}: redirected again and again")
