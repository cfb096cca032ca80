"""Models on this node: each state of a model is fetched once, by whoever comes first, and shared by all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dray.requests.files import sync_folder
from dray.requests.objects import ObjectStoreOptions
from dray.weights.checkpoint import check_checkpoint
from dray.weights.fetch import fetch
from dray.weights.manifest import Manifest

CACHE_VARIABLE = "DRAY_MODEL_CACHE"


def cache_folder() -> Path:
    """``DRAY_MODEL_CACHE``, or ``dray/models`` in the user's cache folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(CACHE_VARIABLE) or base / "dray" / "models")


def obtain(manifest: Manifest, options: ObjectStoreOptions | None = None) -> Path:
    """A local folder with exactly this state of the model.

    Processes of one node that ask at the same time wait for the one that reads; when that one dies, the next
    goes on where it stopped. A folder appears under its final name only when it is complete and sound.

    Raises:
        WeightsError: it cannot be read, or is damaged.
    """
    root = cache_folder()
    root.mkdir(parents=True, exist_ok=True)
    folder = root / manifest.key
    if folder.is_dir():
        return folder
    with _only_one(root / f"{manifest.key}.lock"):
        if not folder.is_dir():
            partial = root / f"{manifest.key}.partial"
            fetch(manifest, partial, options)
            check_checkpoint(partial)
            partial.rename(folder)
            sync_folder(root)
    return folder


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
