"""A model that is elsewhere, as it is now: which files count, and whether they can be a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from dray.errors import ConfigError, WeightsError
from dray.storage.listings import list_folder
from dray.storage.objects import ObjectInfo, ObjectStoreOptions, head, is_web, read_range
from dray.storage.retries import with_retries
from dray.storage.signing import signed_url
from dray.weights.source import hub
from dray.weights.source.checkpoint import (
    INDEX,
    NATIVE,
    compare,
    counting,
    leaves_mistrals,
    places_of,
    refuse_incomplete,
)
from dray.weights.source.header import HEADER_LIMIT, Header, parse_header
from dray.weights.source.manifest import PUBLISHED, Manifest, ModelFile
from dray.weights.source.modules import CONFIG, MODULES, WEIGHTS, module_files
from dray.weights.source.names import TEMPLATES, USUAL, USUAL_TEMPLATES, is_small, named_templates
from dray.weights.source.published import with_digests

_AT_ONCE = 8  # small requests
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

    def below(folder: str) -> set[str]:
        if not hub.is_hub(uri):
            found.update(_below(uri, folder, options))
        return {name.rpartition("/")[2] for name in found if name.rpartition("/")[0] == folder}

    def read(name: str) -> bytes:
        return content_of(uri, found[name], options)

    chosen = wanted_files(uri, {name for name in found if "/" not in name}, read, below)
    files = tuple(found[name] for name in chosen)
    manifest = Manifest(uri=uri, files=files, leaves_mistrals=leaves_mistrals(found, chosen))
    if PUBLISHED in found and believe:
        manifest = with_digests(manifest, content_of(uri, found[PUBLISHED], options))
    for file in manifest.files:
        if not (file.etag or file.digests or hub.is_hub(uri)):
            raise ConfigError(
                f"model {uri}: the server gives no ETag for {file.name}, so a change would go unnoticed"
            )
    return manifest


def wanted_files(
    model: str,
    names: set[str],
    read: Callable[[str], bytes],
    below: Callable[[str], Collection[str]],
) -> list[str]:
    """Which files of a model's folder an engine takes, and of those of its modules and named templates.

    ``read`` gives the content of a small file, ``below`` the names of the files in a folder of the model.

    Raises:
        ConfigError: something is missing.
        WeightsError: the index or ``modules.json`` is damaged, or a file that the latter names is missing.
    """
    refuse_incomplete(model, names)
    names = {name for name in names if not name.startswith(".")}  # no engine's, and our own are called so
    places = places_of(read(INDEX), f"{model}/{INDEX}") if INDEX in names else None
    weights = names.intersection(counting(names, places))
    others = set(filter(is_small, names))
    modules = module_files(model, read(MODULES), below) if MODULES in names else []
    templates = named_templates(below(TEMPLATES))
    return sorted({*weights, *others, *modules, *templates} - {PUBLISHED})


def check_remote(manifest: Manifest, options: ObjectStoreOptions | None = None) -> None:
    """Judge a model before anything large is read: its config, its headers, its index.

    Raises:
        WeightsError: a file is damaged, or the index is not true; names file and tensor.
    """
    uri, files = manifest.uri, {file.name: file for file in manifest.files}
    if not hub.is_hub(uri):
        try:
            signed_url(f"{uri}/config.json", options)
        except OSError as error:  # what can be read here, and not there
            raise WeightsError(f"model {uri}: no address can be signed for nodes: {error}") from None
    try:
        json.loads(content_of(uri, files["config.json"], options))
    except (ValueError, RecursionError):
        raise WeightsError(f"{uri}/config.json: not valid JSON") from None
    names = [name for name in files if name.endswith(".safetensors")]
    with ThreadPoolExecutor(_AT_ONCE, "dray-headers") as pool:
        headers = dict(
            zip(names, pool.map(lambda name: _header(manifest, files[name], options), names), strict=True)
        )
    places = places_of(content_of(uri, files[INDEX], options), f"{uri}/{INDEX}") if INDEX in files else None
    compare(uri, places, {name: header for name, header in headers.items() if files[name].is_weights})


def _found(uri: str, options: ObjectStoreOptions | None) -> tuple[str, dict[str, ModelFile]]:
    """The files in the model's folder, by name, and its URI, pinned where it names a revision."""
    if hub.is_hub(uri):
        repository = hub.look(uri)
        return repository.uri, dict(repository.files)
    try:
        return uri, _web(uri, options) if is_web(uri) else _folder(uri, "", options)
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(f"model {uri}: {error}") from None
    except OSError as error:
        raise ConfigError(f"model {uri}: cannot be listed: {error}") from None


def _below(uri: str, folder: str, options: ObjectStoreOptions | None) -> dict[str, ModelFile]:
    """The files in a folder of the model: of a module that ``modules.json`` names, or of chat templates.

    Raises:
        WeightsError: they cannot be listed.
    """
    try:
        if is_web(uri):
            usual = USUAL_TEMPLATES if folder == TEMPLATES else (CONFIG, WEIGHTS)
            return _tried(uri, [f"{folder}/{name}" for name in usual], options)
        return _folder(uri, f"{folder}/", options)
    except OSError as error:
        raise WeightsError(f"{uri}/{folder}: cannot be listed: {error}") from None


def _folder(uri: str, folder: str, options: ObjectStoreOptions | None) -> dict[str, ModelFile]:
    """The objects of a bucket that are in a folder of the model itself."""
    infos, _ = list_folder(f"{uri}/{folder}", options)  # deeper ones may be many, and are no one's
    return {file.name: file for file in _files(uri, infos) if "/" not in file.name.removeprefix(folder)}


def _web(uri: str, options: ObjectStoreOptions | None) -> dict[str, ModelFile]:
    """What a web server has below ``uri``: it cannot be listed, so the usual names are tried."""
    found = _tried(uri, [CONFIG], options, needed=True)
    found |= _tried(uri, [name for name in (*USUAL, PUBLISHED, INDEX, NATIVE) if name != CONFIG], options)
    shards = {WEIGHTS}
    if (index := found.get(INDEX)) is not None:
        shards = set(places_of(content_of(uri, index, options), f"{uri}/{INDEX}").values())
    return found | _tried(uri, sorted(shards), options, needed=True)


def _tried(
    uri: str, names: Sequence[str], options: ObjectStoreOptions | None, *, needed: bool = False
) -> dict[str, ModelFile]:
    """Which of the files a web server has.

    S3 says 403 of a missing object to those who may not list: unless a file is ``needed``, that is a no.
    """
    no = (FileNotFoundError,) if needed else (FileNotFoundError, PermissionError)

    def tried(name: str) -> ObjectInfo | None:
        with suppress(*no):
            return with_retries(lambda: head(f"{uri}/{name}", options))
        return None

    with ThreadPoolExecutor(_AT_ONCE, "dray-listing") as pool:
        infos = [info for info in pool.map(tried, names) if info is not None]
    return {file.name: file for file in _files(uri, infos)}


def _files(uri: str, infos: Iterable[ObjectInfo]) -> Iterator[ModelFile]:
    for info in infos:
        yield ModelFile(name=info.uri[len(uri) + 1 :], size=info.size, etag=info.etag or "")


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
