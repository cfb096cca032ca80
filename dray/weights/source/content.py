"""What the weight files of a folder hold: a digest of every byte, kept by what the file system says of them.

A file of the same device, inode, size and times is the same file, so a second start reads nothing. The first
one costs what BLAKE3 costs (2.1 GB/s on 2 cores, from memory), at low priority: engines load no faster.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from dray.errors import ConfigError, WeightsError
from dray.storage.home import home_folder
from dray.weights.source.modules import weight_files

_PIECE = 16 << 20  # bytes read at once
_NICE = 10  # the engine that loads the same files goes first
_MOST_THREADS = 8


def content_digests(folder: Path, *, stopped: Callable[[], bool] = lambda: False) -> dict[str, str]:
    """Name to digest (hex) of the safetensors files of a model and its modules.

    Raises:
        WeightsError: a file cannot be read, or changed meanwhile, or ``stopped`` says to end.
    """
    names = weight_files(folder)
    with background_threads("dray-digest") as pool:
        digests = pool.map(lambda name: _digest(folder / name, stopped), names)
        return dict(zip(names, digests, strict=True))


def background_threads(name: str) -> ThreadPoolExecutor:
    """Threads that digest files beside other work: of low priority, for half of the cores at most."""
    threads = min(_MOST_THREADS, max(1, (os.cpu_count() or 1) // 2))
    return ThreadPoolExecutor(threads, name, initializer=_step_back)


def _digest(file: Path, stopped: Callable[[], bool]) -> str:
    try:
        before = _identity(file)
        known = _remembered(file, before)
        if known is not None:
            return known
        found = _read(file, stopped)
        if _identity(file) != before:
            raise WeightsError(f"{file}: it was changed while it was read")
    except OSError as error:
        raise WeightsError(f"{file}: cannot be read: {error.strerror or type(error).__name__}") from None
    _remember(file, before, found)
    return found


def _read(file: Path, stopped: Callable[[], bool]) -> str:
    digest, piece = blake3(), memoryview(bytearray(_PIECE))
    with file.open("rb", buffering=0) as source:
        while size := source.readinto(piece):
            if stopped():
                raise WeightsError(f"{file}: it was not read to its end")
            digest.update(piece[:size])
    return digest.hexdigest()


def _identity(file: Path) -> list[int]:
    """What changes with a file's bytes: a write sets both times, and no program can set the second one."""
    found = file.stat()
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _kept(file: Path) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or home_folder() / ".cache") / "dray" / "digests"
    return root / f"{blake3(os.fsencode(file.resolve())).hexdigest()}.json"


def _remembered(file: Path, identity: list[int]) -> str | None:
    try:
        kept = json.loads(_kept(file).read_bytes())
        return str(kept["blake3"]) if kept["identity"] == identity else None
    except (OSError, ValueError, KeyError, TypeError, ConfigError):  # ConfigError: this user has no home
        return None


def _remember(file: Path, identity: list[int], digest: str) -> None:
    with suppress(OSError, ConfigError):  # the next start reads the file again
        kept = _kept(file)
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_name(f"{kept.name}.{os.getpid()}.{threading.get_ident()}")
        new.write_text(json.dumps({"file": str(file), "identity": identity, "blake3": digest}))
        new.replace(kept)


def _step_back() -> None:
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
