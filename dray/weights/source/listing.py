"""A model that is elsewhere, as it is now: which files count, and whether they can be a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress

from dray.errors import ConfigError, WeightsError
from dray.storage.objects import ObjectInfo, ObjectStoreOptions, head, list_under, read_range
from dray.weights.source import hub
from dray.weights.source.checkpoint import INDEX, compare, places_of, refuse_incomplete
from dray.weights.source.header import HEADER_LIMIT, Header, parse_header
from dray.weights.source.manifest import PUBLISHED, Manifest, ModelFile
from dray.weights.source.published import with_digests
from dray.weights.source.retries import with_retries

_WANTED = (".json", ".safetensors", ".jinja", ".model", ".txt", ".tiktoken")
_WEB = ("http://", "https://")
_USUAL = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "preprocessor_config.json",
)  # fmt: skip
_HEADER_GUESS = 128 << 10  # bytes; about 1,000 tensors, so that one request is mostly enough


def read_manifest(uri: str, options: ObjectStoreOptions | None = None, *, believe: bool = True) -> Manifest:
    """The model below ``uri`` as it is now: configuration, tokenizer, and the safetensors files that count.

    With the checksums of its published manifest (``dray-manifest.json``), where it has one and ``believe``.

    Raises:
        ConfigError: there is no model, or it cannot be read; says what is missing.
    """
    uri, found = _found(uri.rstrip("/"), options)
    if not found:
        raise ConfigError(f"model {uri}: there are no objects below it")
    chosen = wanted_files(uri, set(found), lambda name: content_of(uri, found[name], options))
    manifest = Manifest(uri=uri, files=tuple(found[name] for name in chosen))
    if PUBLISHED in found and believe:
        manifest = with_digests(manifest, content_of(uri, found[PUBLISHED], options))
    for file in manifest.files:
        if not (file.etag or file.digests or hub.is_hub(uri)):
            raise ConfigError(
                f"model {uri}: the server gives no ETag for {file.name}, so a change would go unnoticed"
            )
    return manifest


def wanted_files(model: str, names: set[str], read: Callable[[str], bytes]) -> list[str]:
    """Which files of a model's folder an engine takes; ``read`` gives the content of one (the index).

    Raises:
        ConfigError: something is missing.
    """
    refuse_incomplete(model, names)
    names = {name for name in names if not name.startswith(".")}  # no engine's, and our own are called so
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
        json.loads(content_of(uri, files["config.json"], options))
    except (ValueError, RecursionError):
        raise WeightsError(f"{uri}/config.json: not valid JSON") from None
    headers = {
        name: _header(manifest, files[name], options) for name in files if name.endswith(".safetensors")
    }
    places = places_of(content_of(uri, files[INDEX], options), f"{uri}/{INDEX}") if INDEX in files else None
    compare(uri, places, headers)


def _found(uri: str, options: ObjectStoreOptions | None) -> tuple[str, dict[str, ModelFile]]:
    """The files in the model's folder, by name, and its URI, pinned where it names a revision."""
    if hub.is_hub(uri):
        repository = hub.look(uri)
        return repository.uri, dict(repository.files)
    try:
        infos = list(_web(uri, options) if uri.startswith(_WEB) else list_under(f"{uri}/", options))
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(f"model {uri}: {error}") from None
    except OSError as error:
        raise ConfigError(f"model {uri}: cannot be listed: {error}") from None
    names = {info.uri[len(uri) + 1 :]: info for info in infos}
    return uri, {
        name: ModelFile(name=name, size=info.size, etag=info.etag or "")
        for name, info in names.items()
        if "/" not in name
    }


def _web(uri: str, options: ObjectStoreOptions | None) -> Iterator[ObjectInfo]:
    """What a web server has below ``uri``: it cannot be listed, so the usual names are tried."""
    found = {}
    for name in (*_USUAL, PUBLISHED, INDEX):
        with suppress(FileNotFoundError):
            found[name] = head(f"{uri}/{name}", options)
    shards = {"model.safetensors"}
    if (index := found.get(INDEX)) is not None:
        entry = ModelFile(name=INDEX, size=index.size, etag=index.etag or "")
        shards = set(places_of(content_of(uri, entry, options), f"{uri}/{INDEX}").values())
    for name in sorted(shards):
        with suppress(FileNotFoundError):
            found[name] = head(f"{uri}/{name}", options)
    yield from found.values()


def content_of(
    uri: str, file: ModelFile, options: ObjectStoreOptions | None, end: int | None = None
) -> bytes:
    """The bytes of a file of the model at ``uri``, from its start to ``end`` or to its own end.

    Raises:
        WeightsError: they cannot be read.
    """
    if file.size == 0:
        return b""
    place, end = f"{uri}/{file.name}", min(end or file.size, file.size)
    try:
        if hub.is_hub(uri):
            return with_retries(lambda: hub.read(file, 0, end))
        return with_retries(lambda: read_range(place, 0, end, etag=file.etag, options=options))
    except OSError as error:
        raise WeightsError(f"{place}: {error}") from None


def _header(manifest: Manifest, file: ModelFile, options: ObjectStoreOptions | None) -> Header:
    start = content_of(manifest.uri, file, options, _HEADER_GUESS)
    needed = 8 + int.from_bytes(start[:8], "little")
    if len(start) < needed <= min(file.size, 8 + HEADER_LIMIT):
        start = content_of(manifest.uri, file, options, needed)
    return parse_header(start, file.size, file=f"{manifest.uri}/{file.name}")
