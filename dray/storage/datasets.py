"""Datasets of a hub: ``hf://datasets/ORG/NAME[@REVISION]/PATH``, as fsspec's HfFileSystem writes them.

A revision becomes a commit before anything is read, so that what is read later is that commit. Users write a
slash in a revision as ``%2F``; ``@refs/convert/NAME`` and ``@refs/pr/N`` are also understood as they are. The
hub lists a folder in pages, and says of each file its size and a digest of its content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

from dray.storage import hub_http
from dray.storage.faults import ReplacedError
from dray.storage.hub_http import GATED, DeniedError, MissingError, gated
from dray.storage.objects import ObjectInfo
from dray.storage.retries import PATIENCE, with_retries

SCHEME = "hf://datasets/"
_MAIN = "main"
_COMMIT = re.compile("[0-9a-f]{40}")
_ADDRESS = re.compile(
    r"hf://datasets/(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)"
    r"(?:@(?P<revision>refs/(?:convert/[\w.-]+|pr/\d+)(?=/|$)|[^/]+))?(?:/(?P<path>.*))?",
    re.ASCII | re.DOTALL,
)
_ODD = frozenset(("", ".", ".."))  # parts of a path


class DatasetError(OSError):
    """Why a dataset cannot be read, in words for the user; ``code`` is that of a problem with an input."""

    def __init__(self, told: str, code: str = "unreadable_input") -> None:
        super().__init__(told)
        self.code = code


class AbsentError(DatasetError):
    """The dataset is there, and has nothing of this name."""

    def __init__(self, told: str) -> None:
        super().__init__(told, "missing_input")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What an address names; ``path`` is empty for the repository itself."""

    repository: str
    revision: str
    path: str

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit: what it holds never changes."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def uri(self) -> str:
        """The address as text, with its revision."""
        root = f"{SCHEME}{self.repository}@{quote(self.revision, safe='')}"
        return f"{root}/{self.path}" if self.path else root

    @property
    def api(self) -> str:
        """Where the hub's programs ask about the repository."""
        return f"{hub_http.endpoint()}/api/datasets/{self.repository}"

    @property
    def url(self) -> str:
        """Where the hub has the file."""
        revision = quote(self.revision, safe="")
        return f"{hub_http.endpoint()}/datasets/{self.repository}/resolve/{revision}/{quote(self.path)}"


def is_dataset(uri: str) -> bool:
    """Whether it names a dataset of a hub, or something in it."""
    return uri.startswith(SCHEME)


def address_of(uri: str) -> Address:
    """What ``uri`` names. Nothing is asked.

    Raises:
        DatasetError: it is not written as such an address is.
    """
    match = _ADDRESS.fullmatch(uri)
    if match is None:
        raise DatasetError(
            "write it as hf://datasets/ORG/NAME/PATH or hf://datasets/ORG/NAME@REVISION/PATH, with a slash "
            "in the revision as %2F",
            "missing_input",
        )
    path = match["path"] or ""
    if not _ODD.isdisjoint(path.removesuffix("/").split("/")) and path:
        raise DatasetError("a path in a dataset has no empty part (//), '.' or '..'", "missing_input")
    return Address(repository=match["repository"], revision=unquote(match["revision"] or _MAIN), path=path)


def pinned(uri: str) -> str:
    """The same address with the commit that its revision names now.

    Raises:
        DatasetError: there is none, or this user may not read it.
    """
    return _pinned(address_of(uri)).uri


def head(uri: str) -> ObjectInfo:
    """Size and digest of one file; ``uri`` of what is found names its commit.

    Raises:
        AbsentError: there is none.
        DatasetError: it cannot be read.
    """
    at = _pinned(address_of(uri))
    return _info(at, _place(at))


def list_folder(prefix_uri: str) -> tuple[list[ObjectInfo], list[str]]:
    """The files right below a folder of a pinned address that ends in ``/``, and the folders there."""
    at, infos, folders = address_of(prefix_uri), [], []
    for entry in _tree(at, recursive=False):
        one = replace(at, path=str(entry["path"]))
        if entry["type"] == "directory":
            folders.append(f"{one.uri}/")
        else:
            infos.append(_listed(one, entry))
    return infos, folders


def list_under(prefix_uri: str) -> Iterator[ObjectInfo]:
    """Every file below a folder of a pinned address that ends in ``/``."""
    at = address_of(prefix_uri)
    for entry in _tree(at, recursive=True):
        if entry["type"] != "directory":
            yield _listed(replace(at, path=str(entry["path"])), entry)


class DatasetFile:
    """One file at the state in which it was opened; a read is one request for a range.

    The hub gives signed addresses, which end: then it is asked for another.
    """

    def __init__(self, uri: str) -> None:
        self._at = _pinned(address_of(uri))
        self._place = _place(self._at)
        self.info = _info(self._at, self._place)

    def read(self, start: int, end: int) -> bytes:
        """The bytes [``start``, ``end``).

        Raises:
            ReplacedError: the hub has another file in its place.
            DatasetError: they cannot be read.
        """
        with _told(self._at):
            return with_retries(lambda: self._read(start, end), PATIENCE)

    def _read(self, start: int, end: int) -> bytes:
        try:
            return hub_http.read_range(self._place, start, end, self._at.path)
        except (PermissionError, FileNotFoundError, hub_http.MovedError):
            place = hub_http.find(self._at.url, self._at.path)  # the signature's time is over
        if (place.size, place.etag) != (self._place.size, self._place.etag):
            raise ReplacedError(f"{self._at.uri} was replaced while it was read; start again")
        self._place = place
        return hub_http.read_range(place, start, end, self._at.path)


def _pinned(at: Address) -> Address:
    if at.is_pinned:
        return at
    page = f"{at.api}/revision/{quote(at.revision, safe='')}?expand=sha"
    with _told(at):
        found = json.loads(with_retries(lambda: hub_http.page(page, at.repository)).body)
        commit = str(found["sha"])
        if not _COMMIT.fullmatch(commit):
            raise ValueError(commit)
        return replace(at, revision=commit)


def _place(at: Address) -> hub_http.Place:
    with _told(at):
        place = with_retries(lambda: hub_http.find(at.url, at.path))
        if place.size is None:
            place = replace(place, size=with_retries(lambda: hub_http.size_at(place, at.path)))
        if place.size is None or not place.etag:
            raise DatasetError(
                f"the hub at {hub_http.shown_endpoint()} does not say the file's size and ETag"
            )
        return place


def _info(at: Address, place: hub_http.Place) -> ObjectInfo:
    assert place.size is not None
    return ObjectInfo(uri=at.uri, size=place.size, version=place.etag, etag=place.etag)


def _tree(at: Address, *, recursive: bool) -> Iterator[Mapping[str, Any]]:
    """What the hub lists of a folder, page by page; nothing where there is no such folder."""
    folder = at.path.strip("/")
    below = f"/{quote(folder, safe='')}" if folder else ""
    url: str | None = f"{at.api}/tree/{at.revision}{below}?recursive={str(recursive).lower()}&expand=false"
    asked: set[str] = set()
    while url is not None:
        if url in asked:
            raise DatasetError(f"the hub at {hub_http.shown_endpoint()} lists the folder without end")
        asked.add(url)
        try:
            with _told(at):
                page = _page(url, at)
                entries = [_checked(entry) for entry in json.loads(page.body)]
        except AbsentError:
            return
        yield from entries
        url = page.following


def _page(url: str, at: Address) -> hub_http.Page:
    return with_retries(lambda: hub_http.page(url, at.repository))


def _checked(entry: Any) -> Mapping[str, Any]:
    """An entry of a folder, in which all is there that is read of it."""
    found = {"type": entry["type"], "path": str(entry["path"])}
    if found["type"] == "directory":
        return found
    lfs = entry.get("lfs") or {}
    return found | {"size": int(entry["size"]), "etag": str(lfs.get("oid") or entry["oid"])}


def _listed(at: Address, entry: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(uri=at.uri, size=entry["size"], version=entry["etag"], etag=entry["etag"])


@contextmanager
def _told(at: Address) -> Iterator[None]:
    """Turn what goes wrong at the hub into words for the user."""
    hub, dataset = hub_http.shown_endpoint(), f"dataset {at.repository}"
    try:
        yield
    except (DatasetError, ReplacedError):
        raise
    except DeniedError as error:
        if error.reason == GATED:
            raise DatasetError(gated(dataset, f"{hub}/datasets/{at.repository}")) from None
        raise DatasetError(_denied(dataset, hub)) from None
    except MissingError as error:
        if error.reason == "RevisionNotFound":
            told = f"{dataset} has no revision {at.revision!r}; write a slash in a revision as %2F"
            raise DatasetError(told, "missing_input") from None
        if error.reason == "EntryNotFound":
            raise AbsentError(f"no such file in {dataset} at {at.revision[:12]}") from None
        if error.reason == "RepoNotFound":
            raise DatasetError(_denied(dataset, hub), "missing_input") from None
        raise DatasetError(f"the hub at {hub} finds nothing there: {error}", "missing_input") from None
    except OSError as error:
        raise DatasetError(f"the hub at {hub} does not give it: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DatasetError(f"what answers at {hub} is no hub") from None


def _denied(dataset: str, hub: str) -> str:
    """A hub says the same of what is private and of what is not there."""
    return (
        f"the hub at {hub} has no {dataset}, or does not let us read it; check the name, and that HF_TOKEN "
        "holds a token that may read it"
    )
