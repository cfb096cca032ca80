"""What a model in an object store consists of, pinned: names, sizes and ETags."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from dray.errors import ConfigError, WeightsError
from dray.requests.objects import ObjectInfo, ObjectStoreOptions, list_under, read_range
from dray.weights.checkpoint import INDEX, compare, places_of, refuse_incomplete
from dray.weights.header import HEADER_LIMIT, Header, parse_header

_WANTED = (".json", ".safetensors", ".jinja", ".model", ".txt", ".tiktoken")
_HEADER_GUESS = 128 << 10  # bytes; about 1,000 tensors, so that one request is mostly enough


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One object of the model. ``size`` is in bytes; the ETag changes with the content."""

    name: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of one state of a model: what is read later is this, or nothing."""

    uri: str
    files: tuple[ModelFile, ...]

    @property
    def key(self) -> str:
        """The same for the same state of the same model, and for no other (64 hexadecimal digits)."""
        parts = [self.uri, *(f"{file.name}\0{file.size}\0{file.etag}" for file in self.files)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def read_manifest(uri: str, options: ObjectStoreOptions | None = None) -> Manifest:
    """The model below ``uri`` as it is now: configuration, tokenizer, and the safetensors files that count.

    Raises:
        ConfigError: there is no model, or it cannot be read; says what is missing.
    """
    uri = uri.rstrip("/")
    found = {
        name: info for info in _listed(uri, options) if (name := info.uri[len(uri) + 1 :]).count("/") == 0
    }
    if not found:
        raise ConfigError(f"model {uri}: there are no objects below it")
    refuse_incomplete(uri, set(found))
    weights = {name for name in found if name.endswith(".safetensors")}
    if INDEX in found:
        weights &= set(places_of(_read(uri, INDEX, found[INDEX], options), f"{uri}/{INDEX}").values())
    chosen = sorted(
        n for n in found if n in weights or (n.endswith(_WANTED) and not n.endswith(".safetensors"))
    )
    return Manifest(uri=uri, files=tuple(_file(uri, name, found[name]) for name in chosen))


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
