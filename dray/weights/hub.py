"""Model repositories laid out as on the Hugging Face hub: ``hf://ORG/NAME[@REVISION]``.

The revision becomes a commit when the model is looked at, so what is read later is that commit. Large files
answer with a redirect to a signed address elsewhere, which is asked for anew when it is old; the token goes
to the hub alone. ``HF_ENDPOINT`` names another hub, ``HF_TOKEN`` (or the file that ``hf auth login`` writes)
who asks. https://huggingface.co/docs/hub/api
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urljoin, urlsplit

from dray.errors import ConfigError
from dray.weights.manifest import Manifest, ModelFile

SCHEME = "hf://"
_NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository at one commit, and what is in its top folder."""

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
        ConfigError: there is none, or it is not for us to read.
    """
    match = _NAME.fullmatch(uri.rstrip("/"))
    if match is None:
        raise ConfigError(f"model {uri}: write it as hf://ORG/NAME or hf://ORG/NAME@REVISION")
    name, revision = match[1], match[2] or "main"
    page = f"{_endpoint()}/api/models/{name}/revision/{quote(revision, safe='')}?blobs=true"
    found = json.loads(_opened(page, uri).read())
    commit = found["sha"]
    entries = [entry for entry in found["siblings"] if "/" not in entry["rfilename"]]
    files = {entry["rfilename"]: _file(name, commit, entry) for entry in entries}
    return Repository(name=name, commit=commit, files=files)


def read(file: ModelFile, start: int, end: int) -> bytes:
    """The bytes [``start``, ``end``) of a file, for the few that are read before a fetch.

    Raises:
        OSError: they cannot be read.
    """
    place, headers = address(file)
    request = urllib.request.Request(place, headers={**headers, "Range": f"bytes={start}-{end - 1}"})  # noqa: S310
    with _open(request, file.name) as answer:
        body = bytes(answer.read(end - start + 1))
    if len(body) < end - start:
        raise OSError(f"{len(body):,} bytes came for {end - start:,}")
    return body[: end - start]


def address(file: ModelFile) -> tuple[str, dict[str, str]]:
    """Where a file's bytes are now, and the headers to ask with. The address may be signed: a secret.

    Raises:
        OSError: the hub does not say.
    """
    assert file.url is not None
    request = urllib.request.Request(file.url, headers=_authorization(), method="HEAD")  # noqa: S310
    answer = _open(request, file.name)
    answer.close()
    location = answer.headers.get("Location")
    if location is None:
        return file.url, _authorization()
    target = urljoin(file.url, location)
    same_host = urlsplit(target).netloc == urlsplit(file.url).netloc
    return target, _authorization() if same_host and "Signature=" not in target else {}


def with_files(repository: Repository, names: list[str]) -> Manifest:
    """The manifest of these files."""
    return Manifest(uri=repository.uri, files=tuple(repository.files[name] for name in names))


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
    token = os.environ.get("HF_TOKEN")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    if not token and (home / "token").is_file():
        token = (home / "token").read_text().strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer: urllib would send the token along."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """None."""


_opener = urllib.request.build_opener(_NoRedirect)


def _open(request: urllib.request.Request, name: str) -> Any:
    try:
        return _opener.open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code in (301, 302, 303, 307, 308):
            return error
        if error.code in (401, 403):
            raise PermissionError(f"not allowed: {name} (HTTP {error.code}); is HF_TOKEN set?") from None
        if error.code == 404:
            raise FileNotFoundError(f"no such file: {name}") from None
        raise OSError(f"{name}: HTTP {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(f"{name}: {error.reason}") from None


def _opened(page: str, uri: str) -> Any:
    try:
        return _open(urllib.request.Request(page, headers=_authorization()), uri)  # noqa: S310
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(
            f"model {uri}: no such repository or revision, or not for us to read ({error})"
        ) from None
    except OSError as error:
        raise ConfigError(f"model {uri}: the hub at {_endpoint()} does not answer: {error}") from None
