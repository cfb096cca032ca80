"""Unpack a bundle for the replicas of this node, or leave everything as it is."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dray.storage import objects
from dray.storage.files import local_path
from dray.storage.objects import BLOCK_BYTES, ObjectStoreOptions, is_object
from dray.weights.bundle import archive
from dray.weights.bundle.environment import FOLDER_VARIABLE
from dray.weights.node.ready import boot_id

logger = logging.getLogger(__name__)

_MARKER = ".restored"


def restore(location: str, key: str, cache_root: Path, options: ObjectStoreOptions | None = None) -> bool:
    """Unpack the bundle of this key into ``cache_root``; whether the caches there are those of a bundle.

    ``location`` is a folder or the URI of one in an object store, trusted as the package says: what comes
    from there is code. Replicas of a node that ask at the same time wait for the one that unpacks. A folder
    that has files of its own is left as it is. No bundle, a damaged one, a store out of reach: False, with a
    warning unless it is only missing, and nothing is written to the folder. Nothing is raised.
    """
    began = time.monotonic()
    try:
        _prepare(cache_root.parent)
        with _only_one(cache_root.with_name(f"{cache_root.name}.lock")):
            if _restored(cache_root):
                return True
            if _filled(cache_root) and not came_from_bundle(cache_root):
                logger.info("the engine's caches in %s are this node's own: no bundle restored", cache_root)
                return False
            if not _fetch(location, key, cache_root, options):
                logger.info("no cache bundle %s in %s yet", key[:12], location)
                return False
    except Exception as error:  # noqa: BLE001  a start without caches is slower, and a start
        logger.warning("the cache bundle %s is not used: %s", key[:12], str(error) or type(error).__name__)
        return False
    logger.info("cache bundle %s restored in %.1f s", key[:12], time.monotonic() - began)
    return True


def _prepare(folder: Path) -> None:
    """Make the folder, for this user alone: code that lies in it is run."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"others can write to {folder}; set {FOLDER_VARIABLE} to a folder of your own")


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def came_from_bundle(root: Path) -> bool:
    """Whether the caches there were unpacked, not made."""
    return (root / _MARKER).is_file()


def _restored(root: Path) -> bool:
    """Whether a bundle was unpacked there since the machine started: a power cut may tear an older one."""
    return came_from_bundle(root) and (root / _MARKER).read_text() == boot_id()


def _filled(root: Path) -> bool:
    return root.is_dir() and any(root.iterdir())


def _fetch(location: str, key: str, root: Path, options: ObjectStoreOptions | None) -> bool:
    """Download, verify, unpack, and only then put in place; False where there is no bundle."""
    partial = root.with_name(f"{root.name}.partial")  # one name, under the lock: kills leave one at most
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(mode=0o700)
        packed, tree = partial / "archive", partial / "tree"
        if not _download(archive.uri_of(location, key), packed, options):
            return False
        archive.verify(packed, key)
        archive.unpack(packed, tree)
        (tree / _MARKER).write_text(boot_id())
        if root.is_dir():  # empty, or the same files of before the machine started, perhaps torn
            shutil.rmtree(root)
        tree.rename(root)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def _download(uri: str, path: Path, options: ObjectStoreOptions | None) -> bool:
    size = 0
    with path.open("wb") as file:
        try:
            for block in _blocks(uri, options):
                size += len(block)
                if size > archive.LIMIT_BYTES:
                    raise archive.UnusableError(f"it has more than {archive.LIMIT_BYTES:,} bytes")
                file.write(block)
        except FileNotFoundError:
            return False
    return True


def _blocks(uri: str, options: ObjectStoreOptions | None) -> Iterator[bytes]:
    if is_object(uri):
        yield from objects.stream(uri, options)
        return
    with local_path(uri).open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block
