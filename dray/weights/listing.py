"""A model in an object store as it is now: which objects count, and whether they can be a model."""

from __future__ import annotations

import json
from collections.abc import Callable

from dray.errors import ConfigError, WeightsError
from dray.requests.objects import ObjectInfo, ObjectStoreOptions, list_under, read_range
from dray.weights.checkpoint import INDEX, compare, places_of, refuse_incomplete
from dray.weights.header import HEADER_LIMIT, Header, parse_header
from dray.weights.manifest import PUBLISHED, Manifest, ModelFile
from dray.weights.published import with_digests

_WANTED = (".json", ".safetensors", ".jinja", ".model", ".txt", ".tiktoken")
_HEADER_GUESS = 128 << 10  # bytes; about 1,000 tensors, so that one request is mostly enough


def read_manifest(uri: str, options: ObjectStoreOptions | None = None, *, believe: bool = True) -> Manifest:
    """The model below ``uri`` as it is now: configuration, tokenizer, and the safetensors files that count.

    With the checksums of its published manifest (``dray-manifest.json``), where it has one and ``believe``.

    Raises:
        ConfigError: there is no model, or it cannot be read; says what is missing.
    """
    uri = uri.rstrip("/")
    found = {
        name: info for info in _listed(uri, options) if (name := info.uri[len(uri) + 1 :]).count("/") == 0
    }
    if not found:
        raise ConfigError(f"model {uri}: there are no objects below it")
    chosen = wanted_files(uri, set(found), lambda name: _read(uri, name, found[name], options))
    manifest = Manifest(uri=uri, files=tuple(_file(uri, name, found[name]) for name in chosen))
    if PUBLISHED not in found or not believe:
        return manifest
    return with_digests(manifest, _read(uri, PUBLISHED, found[PUBLISHED], options))


def wanted_files(model: str, names: set[str], read: Callable[[str], bytes]) -> list[str]:
    """Which files of a model's folder an engine takes; ``read`` gives the content of one (the index).

    Raises:
        ConfigError: something is missing.
    """
    refuse_incomplete(model, names)
    weights = {name for name in names if name.endswith(".safetensors")}
    if INDEX in names:
        weights &= set(places_of(read(INDEX), f"{model}/{INDEX}").values())
    others = {name for name in names if name.endswith(_WANTED) and not name.endswith(".safetensors")}
    return sorted(weights | others - {PUBLISHED})


def check_remote(manifest: Manifest, options: ObjectStoreOptions | None = None) -> None:
    """Judge a model before anything large is read: its config, its headers, its index.

    Raises:
        WeightsError: a file is damaged, or the index is not true; names file and tensor.
    """
    uri, files = manifest.uri, {file.name: file for file in manifest.files}
    try:
        json.loads(_bytes(manifest, files["config.json"], options))
    except ValueError:
        raise WeightsError(f"{uri}/config.json: not valid JSON") from None
    headers = {
        name: _header(manifest, files[name], options) for name in files if name.endswith(".safetensors")
    }
    places = places_of(_bytes(manifest, files[INDEX], options), f"{uri}/{INDEX}") if INDEX in files else None
    compare(uri, places, headers)


def _listed(uri: str, options: ObjectStoreOptions | None) -> list[ObjectInfo]:
    try:
        return list(list_under(f"{uri}/", options))
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(f"model {uri}: {error}") from None
    except OSError as error:
        raise ConfigError(f"model {uri}: cannot be listed: {error}") from None


def _file(uri: str, name: str, info: ObjectInfo) -> ModelFile:
    if info.etag is None:
        raise ConfigError(f"model {uri}: the store gives no ETag for {name}, so a change would go unnoticed")
    return ModelFile(name=name, size=info.size, etag=info.etag)


def _read(uri: str, name: str, info: ObjectInfo, options: ObjectStoreOptions | None) -> bytes:
    return _bytes(Manifest(uri=uri, files=()), _file(uri, name, info), options)


def _bytes(
    manifest: Manifest, file: ModelFile, options: ObjectStoreOptions | None, end: int | None = None
) -> bytes:
    if file.size == 0:
        return b""
    place = f"{manifest.uri}/{file.name}"
    try:
        return read_range(place, 0, min(end or file.size, file.size), etag=file.etag, options=options)
    except OSError as error:
        raise WeightsError(f"{place}: {error}") from None


def _header(manifest: Manifest, file: ModelFile, options: ObjectStoreOptions | None) -> Header:
    start = _bytes(manifest, file, options, _HEADER_GUESS)
    needed = 8 + int.from_bytes(start[:8], "little")
    if len(start) < needed <= min(file.size, 8 + HEADER_LIMIT):
        start = _bytes(manifest, file, options, needed)
    return parse_header(start, file.size, file=f"{manifest.uri}/{file.name}")
