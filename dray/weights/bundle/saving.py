"""Publish the caches of one engine for the next ones."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from dray.storage.files import exists, write_atomic
from dray.storage.objects import ObjectStoreOptions
from dray.weights.bundle import archive
from dray.weights.bundle.restoring import came_from_bundle

logger = logging.getLogger(__name__)


def save(location: str, key: str, cache_root: Path, options: ObjectStoreOptions | None = None) -> bool:
    """Publish the caches in ``cache_root`` as the bundle of this key; whether this call did.

    The first one wins: where there is a bundle it stays, and caches that came from a bundle are not saved.
    The same files give the same bytes. The engine may run meanwhile; files that it takes away are left out.
    Nothing is raised: what goes wrong is a warning, and False.
    """
    began = time.monotonic()
    try:
        uri = archive.uri_of(location, key)
        if came_from_bundle(cache_root) or exists(uri, options=options):
            return False
        names = archive.names_in(cache_root)
        if not names:
            return False
        with write_atomic(uri, options=options) as file:
            archive.pack(file, cache_root, names)
            file.write(archive.trailer_of(key, file.info().sha256))
            if exists(uri, options=options):
                raise FileExistsError  # nothing is published when this block raises
    except FileExistsError:
        return False
    except Exception as error:  # noqa: BLE001  the engine is up: no reason to stop it
        logger.warning("the cache bundle %s is not saved: %s", key[:12], str(error) or type(error).__name__)
        return False
    seconds = time.monotonic() - began
    logger.info("cache bundle %s saved: %.1f MB in %.1f s", key[:12], file.size / 1e6, seconds)
    return True
