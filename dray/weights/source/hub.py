"""Model repositories laid out as on the Hugging Face hub: ``hf://ORG/NAME[@REVISION]``.

The revision becomes a commit when the model is looked at, so what is read later is that commit. An old signed
address is asked for again. :mod:`dray.storage.hub_http` speaks with the hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from dray.errors import ConfigError
from dray.storage import hub_http
from dray.storage.addresses import HUB
from dray.storage.datasets import is_dataset
from dray.storage.retries import with_retries
from dray.weights.source.manifest import ModelFile

_NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository at one commit, and its files by their names from its top folder."""

    name: str
    commit: str
    files: Mapping[str, ModelFile]

    @property
    def uri(self) -> str:
        """Its pinned URI."""
        return f"{HUB}{self.name}@{self.commit}"


def is_hub(uri: str) -> bool:
    """Whether it names a repository of a hub."""
    return uri.startswith(HUB)


def refuse_dataset(uri: str) -> None:
    """Refuse the address of a dataset in place of a model's.

    Raises:
        ConfigError: it is one.
    """
    if is_dataset(uri):
        raise ConfigError(
            f"model {uri}: this names a dataset, which can be the input; a model's address is hf://ORG/NAME"
        )


def look(uri: str) -> Repository:
    """The repository as it is now.

    Raises:
        ConfigError: there is none, or this user may not read it.
    """
    refuse_dataset(uri)
    match = _NAME.fullmatch(uri.rstrip("/"))
    if match is None:
        raise ConfigError(f"model {uri}: write it as hf://ORG/NAME or hf://ORG/NAME@REVISION")
    name, revision = match[1], match[2] or "main"
    hub = hub_http.shown_endpoint()
    page = f"{hub_http.endpoint()}/api/models/{name}/revision/{quote(revision, safe='')}?blobs=true"
    try:
        found = json.loads(with_retries(lambda: hub_http.page(page, uri)).body)
        commit = str(found["sha"])
        files = {entry["rfilename"]: _file(name, commit, entry) for entry in found["siblings"]}
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(
            f"model {uri}: no such repository or revision, or not for us to read ({error})"
        ) from None
    except OSError as error:
        why = str(error).removeprefix(f"{uri}: ")
        raise ConfigError(
            f"model {uri}: the hub at {hub} does not answer: {why}; where this machine has no way to it, "
            "give the folder of a copy, or a mirror's address in HF_ENDPOINT"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"model {uri}: what answers at {hub} is no hub") from None
    return Repository(name=name, commit=commit, files=files)


def read(file: ModelFile, start: int, end: int) -> bytes:
    """The bytes [``start``, ``end``) of a file, for the few that are read before a fetch.

    Raises:
        OSError: they cannot be read.
    """
    place = _place(file)
    return hub_http.read_range(place, start, end, file.name)


def address(file: ModelFile) -> tuple[str, dict[str, str]]:
    """Where a file's bytes are now, and the headers to ask with. The address may be signed: a secret.

    Raises:
        PermissionError, FileNotFoundError, BusyError, OSError: as :func:`dray.storage.hub_http.find` does.
    """
    place = _place(file)
    return place.url, dict(place.headers)


def _place(file: ModelFile) -> hub_http.Place:
    assert file.url is not None
    try:
        return hub_http.find(file.url, file.name)
    except hub_http.DeniedError as error:
        if error.reason != hub_http.GATED:
            raise
        told = hub_http.gated("the model", file.url.partition("/resolve/")[0])
        raise hub_http.DeniedError(told, error.reason) from None


def _file(name: str, commit: str, entry: Mapping[str, Any]) -> ModelFile:
    lfs = entry.get("lfs") or {}
    return ModelFile(
        name=entry["rfilename"],
        size=int(entry["size"]),
        etag="",  # the commit pins it
        sha256=str(lfs.get("sha256", "")),
        blob=str(entry.get("blobId") or ""),
        url=f"{hub_http.endpoint()}/{name}/resolve/{commit}/{quote(entry['rfilename'])}",
    )
