"""Models on this node: the first process to come reads each state of a model, and all processes share it.

::

    ROOT/.lock           held for an instant by a process that attaches or evicts a model
    ROOT/KEY.use         locked (shared) by every process that uses the model; its time is the last use
    ROOT/KEY.fill        locked by the process that fills it, and by its fetch processes
    ROOT/KEY.partial/    the files while they are filled, with .dray-ready, the map of what is there
    ROOT/KEY/            the same folder once it is complete and sound
    ROOT/KEY.engine/     what an engine is given: configuration, tokenizer, the weights' true headers
    ROOT/KEY.gone-*/     one of these folders while it is removed; the next process to look goes on with it

The kernel holds all locks: it releases those of a process that dies.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from dray.errors import WeightsError
from dray.storage.files import sync
from dray.weights.node.description import read_description, write_description
from dray.weights.node.places import CacheRoot, cache_roots, prepare, room, withdraw
from dray.weights.source.manifest import Manifest

_logger = logging.getLogger(__name__)

READY = ".dray-ready"
DESCRIPTION = ".dray-model.json"
_LOCK = ".lock"
_KEY = re.compile("[0-9a-f]{64}")
_GONE = re.compile(r"[0-9a-f]{64}\.gone-[0-9a-f]+")
_FOLDERS = ("", ".partial", ".engine", ".engine-new")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPaths:
    """The paths of one model at one place."""

    place: CacheRoot
    key: str
    held: int | None = field(default=None, compare=False)  # the lock, open, of a process that uses the model

    @property
    def removed(self) -> bool:
        """Whether the model that this process uses was removed from outside, as systemd does at a logout."""
        with suppress(OSError):
            return self.held is not None and os.fstat(self.held).st_nlink == 0
        return True

    @property
    def whole(self) -> Path:
        """The complete model."""
        return self.place.root / self.key

    @property
    def partial(self) -> Path:
        """The model while it is filled."""
        return self.place.root / f"{self.key}.partial"

    @property
    def engine(self) -> Path:
        """What an engine is given as the model's folder."""
        return self.place.root / f"{self.key}.engine"

    @property
    def fill_lock(self) -> Path:
        """Held by the process that fills the model."""
        return self.place.root / f"{self.key}.fill"

    @property
    def use_lock(self) -> Path:
        """Held, shared, by all processes that use the model."""
        return self.place.root / f"{self.key}.use"

    def file(self, name: str) -> Path:
        """A file of the model, wherever it is by now."""
        found = self.whole / name
        return found if found.exists() else self.partial / name


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """One model of a place. ``used`` is in seconds since 1970, ``size`` in bytes of memory or disk."""

    key: str
    uri: str
    size: int
    whole: bool
    used: float
    in_use: bool


@contextmanager
def attached(manifest: Manifest) -> Iterator[ModelPaths]:
    """The model's folders, in use as long as the block runs: it is not evicted meanwhile.

    They are where the model is already, else at the first place with room for it. To make that room, the
    models used longest ago are evicted.

    Raises:
        WeightsError: no place has room.
    """
    try:
        paths, use = _attach(manifest)
    except FileNotFoundError:  # the last user of the place removed it at this moment
        paths, use = _attach(manifest)
    try:
        yield paths
    finally:
        with suppress(OSError):
            os.utime(use)
        os.close(use)


def cached_models(place: CacheRoot) -> list[CachedModel]:
    """The models at a place, the one used last first."""
    if not place.root.is_dir():
        return []
    try:
        with _locked(place.root):
            found = _models(place)
    except FileNotFoundError:  # the last user of the place removed it at this moment
        return []
    return sorted(found, key=lambda model: -model.used)


def evict(place: CacheRoot, keys: set[str] | None = None) -> list[str]:
    """Remove the models that no process uses, all or only these; returns the keys of the removed ones."""
    gone = []
    for model in cached_models(place):
        if (keys is None or model.key in keys) and _remove(ModelPaths(place=place, key=model.key)):
            gone.append(model.key)
    withdraw(place)
    if place.memory and not os.path.ismount(place.root):
        _leave(place)
    return gone


def _leave(place: CacheRoot) -> None:
    """Remove the folder if only its lock is in it: a process that waits for the lock makes it again."""
    with suppress(OSError), _locked(place.root):
        if [path.name for path in place.root.iterdir()] == [_LOCK]:
            (place.root / _LOCK).unlink()
            place.root.rmdir()


def _attach(manifest: Manifest) -> tuple[ModelPaths, int]:
    options = _usable(cache_roots())
    with _locked(options[0].root) as first:  # all processes of the node choose one after the other
        paths = _chosen(manifest, options)
        with nullcontext() if paths.place.root == first else _locked(paths.place.root):
            if not paths.use_lock.exists():  # what is there is being removed from outside, or was in part
                _rename_away(paths)
            use = os.open(paths.use_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(use, fcntl.LOCK_SH)
                os.utime(use)
                if not paths.whole.is_dir():
                    _begin(paths, manifest)
            except BaseException:
                os.close(use)
                raise
    return replace(paths, held=use), use


def _usable(options: list[CacheRoot]) -> list[CacheRoot]:
    """Without the first ones that are not this user's: nothing there is to be trusted. The last one must be.

    Raises:
        WeightsError: it is not.
    """
    for number, place in enumerate(options[:-1]):
        try:
            prepare(place)
        except WeightsError as error:
            _logger.warning("%s; the model goes to %s", error, options[number + 1].root)
        else:
            return options[number:]
    prepare(options[-1])
    return options[-1:]


def _begin(paths: ModelPaths, manifest: Manifest) -> None:
    """Let every process find the model here, and count its bytes as taken."""
    paths.partial.mkdir(exist_ok=True)
    if not (paths.partial / DESCRIPTION).exists():
        write_description(paths.partial / DESCRIPTION, manifest)


def _chosen(manifest: Manifest, options: list[CacheRoot]) -> ModelPaths:
    all_paths = [ModelPaths(place=place, key=manifest.key) for place in options]
    for paths in all_paths:
        if paths.whole.is_dir():
            return paths
        if paths.partial.is_dir():
            with nullcontext() if paths.place is options[0] else _locked(paths.place.root):
                if _can_go_on(paths, manifest.size):
                    return paths
    told = []
    for paths in all_paths:
        place = paths.place
        try:
            prepare(place)
        except WeightsError as error:
            told.append(str(error))
            continue
        with nullcontext() if place is options[0] else _locked(place.root):
            if _make_room(place, manifest.size):
                return paths
            told.append(f"{max(0, _free(place)) / 1e9:.2f} GB are free in {place.root}")
    raise WeightsError(
        f"no room for model {manifest.uri} ({manifest.size / 1e9:.2f} GB): {', '.join(told)}; "
        "set DRAY_MODEL_CACHE to a folder on a larger disk"
    )


def _can_go_on(paths: ModelPaths, size: int) -> bool:
    """Whether there is room for the rest of a model that was begun earlier; removes it where there is none.

    While other processes use it, its room is theirs, and counted as taken.
    """
    if paths.use_lock.exists() and not _is_free(paths):
        return True
    left = max(0, size - _taken(paths.partial))
    return _make_room(paths.place, left, but=paths.key) or not _remove_unused(paths)


def _make_room(place: CacheRoot, size: int, *, but: str | None = None) -> bool:
    """Evict the models used longest ago until ``size`` bytes are free; none where that would not do."""
    unused = [model for model in _models(place) if not model.in_use and model.key != but]
    models = sorted(unused, key=lambda model: model.used)
    if _free(place) + sum(model.size for model in models) < size:
        return False
    for model in models:
        if _free(place) >= size:
            break
        _remove_unused(ModelPaths(place=place, key=model.key))
    return _free(place) >= size


def _free(place: CacheRoot) -> int:
    """Bytes that nothing has taken, nor will: models that are being filled will take their whole size."""
    filled = [
        ModelPaths(place=place, key=model.key) for model in _models(place) if model.in_use and not model.whole
    ]
    return room(place) - sum(max(0, _size(paths) - _allocated(paths)) for paths in filled)


def _size(paths: ModelPaths) -> int:
    """Bytes of a model's files once they are there."""
    with suppress(WeightsError):
        return sum(file.size for file in read_description(paths.file(DESCRIPTION)).files)
    return 0


def _models(place: CacheRoot) -> list[CachedModel]:
    _sweep(place.root)
    names = [path.name for path in place.root.iterdir() if not _GONE.fullmatch(path.name)]
    keys = {key for name in names if _KEY.fullmatch(key := name.split(".")[0])}
    return [_kept(ModelPaths(place=place, key=key)) for key in keys]


def _kept(paths: ModelPaths) -> CachedModel:
    used, in_use = 0.0, False
    with suppress(FileNotFoundError):  # no lock: no process has used it
        used = paths.use_lock.stat().st_mtime
        in_use = not _is_free(paths)
    whole = paths.whole.is_dir()
    return CachedModel(
        key=paths.key, uri=_uri(paths), size=_allocated(paths), whole=whole, used=used, in_use=in_use
    )


def _uri(paths: ModelPaths) -> str:
    try:
        return read_description(paths.file(DESCRIPTION)).uri
    except WeightsError:
        return ""


def _allocated(paths: ModelPaths) -> int:
    return sum(_taken(paths.place.root / f"{paths.key}{suffix}") for suffix in _FOLDERS)


def _taken(folder: Path) -> int:
    """Bytes of a folder's files; another process may rename or remove any of them meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike rglob, it passes over what is gone
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_blocks * 512  # noqa: PTH116, PTH118  as they come
    return total


def _is_free(paths: ModelPaths) -> bool:
    """Whether no process uses the model now."""
    descriptor = os.open(paths.use_lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(paths: ModelPaths) -> bool:
    try:
        with _locked(paths.place.root):
            return _remove_unused(paths)
    except FileNotFoundError:  # another process removed it, and the place with it
        return False


def _remove_unused(paths: ModelPaths) -> bool:
    """Remove it unless a process uses it; no process begins to, as the place is locked."""
    if paths.use_lock.exists() and not _is_free(paths):
        return False
    _remove_locked(paths)
    return True


def _remove_locked(paths: ModelPaths) -> None:
    """Rename the folders first: a process killed meanwhile leaves no part that looks like the whole model."""
    _rename_away(paths)
    for file in (paths.fill_lock, paths.use_lock):
        file.unlink(missing_ok=True)


def _rename_away(paths: ModelPaths) -> None:
    root, found = paths.place.root, False
    for suffix in _FOLDERS:
        with suppress(FileNotFoundError):
            (root / f"{paths.key}{suffix}").rename(root / f"{paths.key}.gone-{secrets.token_hex(8)}")
            found = True
    if found:
        sync(root)
        _sweep(root)


def _sweep(root: Path) -> None:
    """Go on with removals that were begun, by this process or by one that was killed."""
    for path in root.iterdir():
        if _GONE.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(root: Path) -> Iterator[Path]:
    """Hold the lock of the place, for an instant."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with (root / _LOCK).open("w") as lock:
            if _is_ours(lock, root / _LOCK):
                yield root
                return
        time.sleep(0.005)
    raise WeightsError(f"{root / _LOCK} is held for a minute; is a process stopped?")


def _is_ours(lock: IO[str], path: Path) -> bool:
    """Whether this process has the lock now, and other processes still find this lock at ``path``."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
