"""Files elsewhere that an input is read from: objects of a store, and files of a hub's datasets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator

from dray.storage import datasets, listings, objects
from dray.storage.datasets import is_dataset
from dray.storage.listings import tell_odd
from dray.storage.objects import PART_BYTES, ObjectInfo, ObjectStoreOptions, is_object, is_web
from dray.storage.parts import one_ahead
from dray.storage.retries import PATIENCE, while_busy, with_retries

_SHA256 = re.compile("[0-9a-f]{64}")


def is_remote(uri: str) -> bool:
    """Whether ``uri`` names a file elsewhere, and not one of this machine."""
    return is_object(uri) or is_dataset(uri)


def pinned(uri: str) -> str:
    """The address of one state, where the place keeps several: a dataset's commit in place of its branch.

    Raises:
        OSError: there is no such revision, or the hub does not say.
    """
    return datasets.pinned(uri) if is_dataset(uri) else uri


def head(uri: str, options: ObjectStoreOptions | None = None) -> ObjectInfo:
    """Size and version of one file."""
    return datasets.head(uri) if is_dataset(uri) else while_busy(lambda: objects.head(uri, options))


def list_under(
    prefix_uri: str, options: ObjectStoreOptions | None = None, *, odd: Callable[[str], None] = tell_odd
) -> Iterator[ObjectInfo]:
    """Every file below a prefix that ends in ``/``; ``odd`` as for :func:`listings.list_under`."""
    if is_dataset(prefix_uri):
        return datasets.list_under(prefix_uri)
    return listings.list_under(prefix_uri, options, odd=odd)


def list_folder(
    prefix_uri: str, options: ObjectStoreOptions | None = None, *, odd: Callable[[str], None] = tell_odd
) -> tuple[list[ObjectInfo], list[str]]:
    """The files right below a prefix that ends in ``/``, and the prefixes of what lies deeper."""
    if is_dataset(prefix_uri):
        return datasets.list_folder(prefix_uri)
    return listings.list_folder(prefix_uri, options, odd=odd)


def stream(uri: str, options: ObjectStoreOptions | None = None) -> Iterator[bytes]:
    """The bytes of one file, in blocks; OSError when it is replaced meanwhile."""
    if is_dataset(uri):
        return _stream_dataset(uri)
    return objects.stream_whole(uri, options) if is_web(uri) else _stream_object(uri, options)


def _stream_object(uri: str, options: ObjectStoreOptions | None) -> Iterator[bytes]:
    info = with_retries(lambda: objects.head(uri, options), PATIENCE)
    etag = info.etag or ""

    def part(start: int, end: int) -> bytes:
        return with_retries(lambda: objects.read_range(uri, start, end, etag=etag, options=options), PATIENCE)

    return one_ahead(part, 0, info.size, PART_BYTES)


def _stream_dataset(uri: str) -> Iterator[bytes]:
    """The bytes of a file; those of a large one are held against the SHA-256 by which the hub names it."""
    file = datasets.DatasetFile(uri)
    named = file.info.etag or ""
    found = hashlib.sha256() if _SHA256.fullmatch(named) else None
    for block in one_ahead(file.read, 0, file.info.size, PART_BYTES):
        if found is not None:
            found.update(block)
        yield block
    if found is not None and found.hexdigest() != named:
        raise OSError("its bytes are not those that the hub's SHA-256 names; start again")
