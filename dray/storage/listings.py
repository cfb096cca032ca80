"""What lies below a prefix of an object store, and right below it.

Users' programs write keys that no path can name: ``data//y.jsonl``, ``data/./y.jsonl``, control signs.
A single one fails a listing of obstore's as a whole. On S3 boto3 then lists, and leaves out such names.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from dray.storage.faults import UnnamedError, boto3_translated, translated
from dray.storage.objects import ObjectInfo, ObjectStoreOptions, info_of, is_s3, s3_client, store_of

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_told: set[str] = set()  # buckets

_logger = logging.getLogger(__name__)


def tell_odd(uri: str) -> None:
    """Warn of an object, or a prefix, that was left out of a listing: once for each bucket."""
    bucket = uri.split("/")[2]
    if bucket not in _told:
        _told.add(bucket)
        _logger.warning(
            "bucket %s: objects whose names have an empty part (//), '.', '..' or a control sign cannot be "
            "asked for, and dray leaves them out, such as %r",
            bucket,
            uri,
        )


def list_under(
    prefix_uri: str, options: ObjectStoreOptions | None = None, *, odd: Callable[[str], None] = tell_odd
) -> Iterator[ObjectInfo]:
    """Every object below a prefix that ends in ``/`` (or names the bucket).

    ``odd`` is called with the URI of each that cannot be asked for.

    Raises:
        UnnamedError: there is one, and the store is not S3.
    """
    store, prefix = store_of(prefix_uri, options)
    root = _root(prefix_uri, prefix)
    after, behind = "", set[str]()  # the last key that is surely no folder's marker, and those that followed
    try:
        with translated(prefix_uri):
            for page in store.list(prefix or None):
                for meta in page:
                    if meta["size"]:
                        after = meta["path"]
                        behind.clear()
                    else:
                        behind.add(meta["path"])
                    yield _quoted(info_of(root + meta["path"], meta))
        return
    except UnnamedError:
        if not is_s3(prefix_uri):
            raise
    for found in _pages(prefix_uri, prefix, options, **({"StartAfter": after} if after else {})):
        for item in found.get("Contents", ()):
            if item["Key"] not in behind and (info := _named(root, item, odd)) is not None:
                yield info


def list_folder(
    prefix_uri: str, options: ObjectStoreOptions | None = None, *, odd: Callable[[str], None] = tell_odd
) -> tuple[list[ObjectInfo], list[str]]:
    """The objects right below a prefix that ends in ``/``, and the prefixes of what lies deeper.

    ``odd`` is called with the URI of each that cannot be asked for.

    Raises:
        UnnamedError: there is one, and the store is not S3.
    """
    store, prefix = store_of(prefix_uri, options)
    root = _root(prefix_uri, prefix)
    try:
        with translated(prefix_uri):
            found = store.list_with_delimiter(prefix or None)
    except UnnamedError:
        if not is_s3(prefix_uri):
            raise
        return _folder_of_s3(prefix_uri, root, prefix, options, odd)
    infos = [_quoted(info_of(root + meta["path"], meta)) for meta in found["objects"]]
    return infos, [f"{root}{folder.rstrip('/')}/" for folder in found["common_prefixes"]]


def _folder_of_s3(
    prefix_uri: str, root: str, prefix: str, options: ObjectStoreOptions | None, odd: Callable[[str], None]
) -> tuple[list[ObjectInfo], list[str]]:
    infos: list[ObjectInfo] = []
    folders: list[str] = []
    for found in _pages(prefix_uri, prefix, options, Delimiter="/"):
        named = (_named(root, item, odd) for item in found.get("Contents", ()))
        infos += [info for info in named if info is not None]
        for below in found.get("CommonPrefixes", ()):
            folder = below["Prefix"]
            if _is_nameable(folder[:-1]):
                folders.append(root + folder)
            else:
                odd(root + folder)
    return infos, folders


def _pages(prefix_uri: str, prefix: str, options: ObjectStoreOptions | None, **how: Any) -> Iterator[Any]:
    bucket = prefix_uri.split("/")[2]
    with boto3_translated(prefix_uri):
        pages = s3_client(options).get_paginator("list_objects_v2")
        yield from pages.paginate(Bucket=bucket, Prefix=prefix, **how)


def _named(root: str, item: Any, odd: Callable[[str], None]) -> ObjectInfo | None:
    """One of boto3's; None for a folder's marker, and for what no path can name."""
    key = item["Key"]
    if _is_nameable(key):
        return ObjectInfo(uri=root + key, size=item["Size"], version=item["ETag"], etag=item["ETag"])
    if not _is_nameable(key.removesuffix("/")):
        odd(root + key)
    return None


def _is_nameable(key: str) -> bool:
    """Whether obstore can ask for it."""
    return not _CONTROL.search(key) and all(part not in ("", ".", "..") for part in key.split("/"))


def _root(prefix_uri: str, prefix: str) -> str:
    return prefix_uri[: len(prefix_uri) - len(prefix)].rstrip("/") + "/"


def _quoted(info: ObjectInfo) -> ObjectInfo:
    """The object with its ETag as headers write it (RFC 9110, 8.8.3): Azure's listings leave quotes out."""
    etag = info.etag
    return replace(info, etag=etag if not etag or etag.startswith(('"', "W/")) else f'"{etag}"')
