"""Write the checksums of a model beside it, once, so that every node can verify what it reads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from dray.errors import ConfigError, WeightsError
from dray.storage.files import join
from dray.storage.objects import ObjectStoreOptions, is_object, is_web, upload
from dray.storage.remote import stream
from dray.weights.source.checkpoint import check_checkpoint
from dray.weights.source.hub import is_hub
from dray.weights.source.listing import check_remote, read_manifest, wanted_files
from dray.weights.source.manifest import CHUNK_BYTES, PUBLISHED
from dray.weights.source.modules import names_in
from dray.weights.source.published import manifest_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where a manifest was written, and what it covers."""

    path: str
    files: int
    size: int


def publish(
    model: str,
    options: ObjectStoreOptions | None = None,
    *,
    progress: Callable[[int], None] = lambda size: None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Published:
    """Read a model once and write its checksums beside it; ``progress`` hears bytes.

    Args:
        model: a folder, or the URI of one in an object store.

    Raises:
        ConfigError: there is no model, it is damaged, or it changed while it was read.
        OSError: it cannot be read, or the manifest not be written.
    """
    if is_hub(model) or is_web(model):
        raise ConfigError(
            f"model {model}: nothing can be written there; publish a copy in a bucket or a folder"
        )
    if not is_object(model) and not Path(model).is_dir():
        raise ConfigError(f"model {model}: no such directory")
    files = dict(_digests(model, options, progress, chunk_bytes))
    text = manifest_text(files, chunk_bytes)
    path = join(model, PUBLISHED)
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / PUBLISHED
        fresh.write_text(text)
        if is_object(model):
            upload(fresh, path, options)
        else:
            beside = Path(path).with_suffix(".new")
            beside.write_text(text)
            beside.rename(path)
    return Published(path=path, files=len(files), size=sum(file["size"] for file in files.values()))


def _digests(
    model: str, options: ObjectStoreOptions | None, progress: Callable[[int], None], chunk_bytes: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, size, blocks in _contents(model, options):
        digests, total = [], 0
        for chunk in _chunks(blocks, chunk_bytes):
            digests.append(blake3(chunk, max_threads=blake3.AUTO).hexdigest())
            total += len(chunk)
            progress(len(chunk))
        if total != size:
            raise WeightsError(f"{model}/{name}: changed while it was read; publish again")
        yield name, {"size": size, "blake3": digests}


def _contents(model: str, options: ObjectStoreOptions | None) -> Iterator[tuple[str, int, Iterable[bytes]]]:
    if is_object(model):
        manifest = read_manifest(model, options, believe=False)
        check_remote(manifest, options)
        for file in manifest.files:
            yield file.name, file.size, stream(f"{manifest.uri}/{file.name}", options)
        return
    folder = Path(model)
    check_checkpoint(folder)
    chosen = wanted_files(
        model,
        names_in(folder),
        lambda name: (folder / name).read_bytes(),
        lambda below: names_in(folder / below),
    )
    for name in chosen:
        yield name, (folder / name).stat().st_size, _blocks(folder / name)


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(CHUNK_BYTES):
            yield block


def _chunks(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of ``size``, the last one shorter."""
    held = bytearray()
    for block in blocks:
        held += block
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)
