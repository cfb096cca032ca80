"""A model on this node, as one process sees it: usable at once, complete a little later."""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from dray.errors import DrayError, WeightsError
from dray.storage.objects import ObjectStoreOptions
from dray.weights.fetch.chunks import Chunk, ChunkPlan
from dray.weights.fetch.transfer import Peers, Transfer, Transferred
from dray.weights.node.cache import READY, ModelPaths, attached
from dray.weights.node.file_hashes import FileHashes
from dray.weights.node.filling import EngineFolder, distrust, lay_out, publish
from dray.weights.node.ready import STALL_SECONDS, ChunkMap
from dray.weights.source.manifest import Manifest

_logger = logging.getLogger(__name__)

_STANDBY_SECONDS = 0.1  # between looks whether the filling process is gone
_ATTACHMENTS = 5  # of one model by one process: its folder may be removed from outside
_REMOVAL_SECONDS = 1.0  # that such a removal may take


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProgress:
    """How far a node is with a model: bytes, and seconds since 1970 (``began``, ``moved``).

    ``failure`` says why it cannot be had; ``from_peers`` is known once the fetch ended.
    """

    node: str
    ready: int
    size: int
    root: str
    memory: bool
    began: float
    moved: float
    failure: str | None = None
    from_peers: int | None = None


class LocalModel:
    """A model that this process uses, and fills when no other process does.

    Of all processes of the node that have one open, one fills it. When that process dies, the first other
    one to notice goes on where it stopped. For ``patience`` seconds this process leaves that to others: to
    the node's agent, which knows other nodes.

    Raises:
        WeightsError: there is no room for it.
    """

    def __init__(
        self,
        manifest: Manifest,
        options: ObjectStoreOptions | None = None,
        *,
        peers: Peers | None = None,
        patience: float = 0.0,
    ) -> None:
        self.manifest = manifest
        self.plan = ChunkPlan(manifest)
        self.outcome: Transferred | None = None
        self._options = options
        self._peers = peers
        self._patience = patience
        self._stack = ExitStack()
        self.paths: ModelPaths = self._stack.enter_context(attached(manifest))
        self._map: ChunkMap | None = None
        self._generation: int | None = None  # of the map, when what the engine loads was given to it
        self._transfer: Transfer | None = None
        self._closed = threading.Event()
        self._settled = threading.Event()  # the filling process is known: the map's failure is no older one
        self._error: Exception | None = None
        self._attachments = 1
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._stand_by, name="dray-weights", daemon=True)
        self._thread.start()

    def __enter__(self) -> LocalModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Use it no longer; a fetch of this process ends, with what is there."""
        self._closed.set()
        if self._transfer is not None:
            self._transfer.stop()
        self._thread.join()
        known = self._map
        if known is not None:
            known.close()
        self._stack.close()

    @property
    def ready(self) -> ChunkMap:
        """The map of its ready chunks; waits until the filling process has made it."""
        deadline = time.monotonic() + STALL_SECONDS
        while (found := self._opened_map()) is None:
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                raise WeightsError(
                    f"model {self.manifest.uri}: no process fetches the weights in {self.paths.partial}; "
                    "start the job again"
                )
            time.sleep(0.002)
        return found

    def _opened_map(self) -> ChunkMap | None:
        """The map, once there is one; not one that was removed."""
        known = self._map  # looked at once: another thread may take it away
        if known is not None and not known.removed:
            return known
        whole = self.paths.whole.is_dir()
        folder = self.paths.whole if whole else self.paths.partial
        found: ChunkMap | None = None
        with suppress(FileNotFoundError):
            found = ChunkMap(folder / READY, writable=False, published=whole)
        self._map = found  # the other one is left to the garbage collector: a thread may look at it
        return found

    def marks(self) -> bytes:
        """Which chunks are there, one byte per chunk; all zeros until a process begins to fill it."""
        ready = self._opened_map()
        return bytes(len(self.plan.chunks)) if ready is None else ready.marks

    def progress(self) -> tuple[int, int]:
        """Bytes that are there, and bytes in all."""
        pairs = zip(self.plan.chunks, self.marks(), strict=True)
        return sum(chunk.size for chunk, mark in pairs if mark), self.manifest.size

    def span(self) -> tuple[float, float]:
        """When the latest fetch began and when its latest chunk came (seconds since 1970); zeros before."""
        ready = self._opened_map()
        return (0.0, 0.0) if ready is None else ready.span

    def failure(self) -> str | None:
        """Why it cannot be had, as things are."""
        if self._error is not None:
            return str(self._error)
        if self.paths.removed and not self._thread.is_alive():
            return f"{self.paths.place.root}: the model was removed from outside"
        known = self._map
        return known.failure if known is not None else None

    def describe(self, node: str) -> ModelProgress:
        """How far the fetch is, for the user; ``node`` is the name of this node."""
        ready, size = self.progress()
        began, moved = self.span()
        outcome = self.outcome
        return ModelProgress(
            node=node,
            ready=ready,
            size=size,
            root=str(self.paths.place.root),
            memory=self.paths.place.memory,
            began=began,
            moved=moved,
            failure=self.failure(),
            from_peers=None if outcome is None else sum(b for s, b in outcome.bytes_from.items() if s),
        )

    def wait_engine(self, alive: Callable[[], None] = lambda: None) -> Path:
        """The folder to give to an engine, once its small files and headers are there.

        It holds configuration, tokenizer, index, and safetensors files cut off behind their headers: only
        the load format ``dray`` can load from it, everything else refuses.

        Raises:
            WeightsError: the model cannot be had, or is damaged.
        """
        self._wait(self._engine_made, alive)
        return self.paths.engine

    def wait_whole(self, alive: Callable[[], None] = lambda: None) -> Path:
        """The folder of the complete model, once it is complete and sound.

        Raises:
            WeightsError: the model cannot be had, or is damaged. Or parts of it were damaged and fetched
                again, and may have been loaded since :meth:`wait_engine` returned.
        """
        self._wait(self.paths.whole.is_dir, alive)
        if self._generation is not None and self._generation != self.ready.generation:
            raise WeightsError(
                f"model {self.manifest.uri}: what was loaded of it was damaged, and fetched anew since"
            )
        return self.paths.whole

    def _engine_made(self) -> bool:
        """Whether the engine's folder is there, and stays after a boot."""
        ready = self._opened_map()
        if not (self.paths.whole.is_dir() or (ready is not None and ready.believed)):
            return False
        if ready is not None:
            self._generation = ready.generation
        # Last: it is removed before its map is believed, and before chunks are unmarked.
        return self.paths.engine.is_dir()

    def _wait(self, done: Callable[[], bool], alive: Callable[[], None]) -> None:
        moved, signs = time.monotonic(), (-1, 0)
        while not done():
            alive()
            if not self._settled.wait(0.005):
                continue
            if self._error is not None:
                raise self._error
            if self.paths.removed and not self._thread.is_alive():
                self._begin()
            ready = self.ready
            if ready.failure is not None:
                raise WeightsError(ready.failure)
            if (found := ready.signs) != signs:
                moved, signs = time.monotonic(), found
            if time.monotonic() - moved > STALL_SECONDS:
                raise WeightsError(f"model {self.manifest.uri}: nothing arrived for {STALL_SECONDS:.0f} s")
            time.sleep(0.005)

    # -- filling ----------------------------------------------------------------------------

    def _stand_by(self) -> None:
        """Fill it, or wait until it is whole, ready to take over; again where its folder was removed."""
        try:
            while True:
                try:
                    self._stand_by_until_settled()
                except FileNotFoundError:
                    if not self._removed_soon():
                        raise
                if not self.paths.removed or self._closed.is_set():
                    return
                self._attach_anew()
        except Exception as error:  # noqa: BLE001  thread edge: raised where the model is waited for
            self._error = WeightsError(f"model {self.manifest.uri}: {_reason(error)}")
        finally:
            self._settled.set()

    def _removed_soon(self) -> bool:
        """Whether all of the model is removed at this moment, and no file of it alone."""
        until = time.monotonic() + _REMOVAL_SECONDS
        while not self.paths.removed and time.monotonic() < until:
            self._closed.wait(0.05)
        return self.paths.removed

    def _attach_anew(self) -> None:
        """Begin again with a model whose folder was removed.

        Raises:
            WeightsError: there is no room for it, or it was removed too often.
        """
        root = self.paths.place.root
        if self._attachments == _ATTACHMENTS:
            raise WeightsError(
                f"{root}: it was removed from outside {_ATTACHMENTS} times while the model came: look what "
                "does that (systemd at a logout: RemoveIPC), or set DRAY_MODEL_CACHE to another folder"
            )
        self._attachments += 1
        _logger.warning("%s was removed from outside: model %s comes again", root, self.manifest.uri)
        stack, before = ExitStack(), self._stack
        self.paths, self._stack = stack.enter_context(attached(self.manifest)), stack
        self._generation = None
        before.close()

    def _stand_by_until_settled(self) -> None:
        others, free_since = False, time.monotonic()
        while not (self._closed.is_set() or self.paths.removed or self.paths.whole.is_dir()):
            with self.paths.fill_lock.open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    others, free_since = True, time.monotonic()
                    self._settled.set()
                else:
                    if self.paths.whole.is_dir() or (others and self._failed()):
                        return
                    if time.monotonic() - free_since >= self._patience:
                        self._fill(lock.fileno())
                        return
            self._closed.wait(_STANDBY_SECONDS)

    def _failed(self) -> bool:
        """Whether the filling process gave up: it would fail again. A later ``LocalModel`` tries again."""
        return self.paths.file(READY).exists() and self.ready.failure is not None

    def _fill(self, lock: int) -> None:
        ready: ChunkMap | None = None
        try:
            changed = lay_out(self.paths.partial, self.manifest)
            ready = ChunkMap.made(self.paths.partial / READY, len(self.plan.chunks))
            for chunk in self.plan.chunks:
                if chunk.file in changed and ready.noted[chunk.number]:  # of a file that was removed
                    ready.unmark(chunk.number)
            self._fill_map(ready, lock)
        except FileNotFoundError as error:
            if self._removed_soon():
                raise
            self._fail(ready, error)
        except Exception as error:  # noqa: BLE001  thread edge: the map reports it to all that wait
            self._fail(ready, error)
        finally:
            if ready is not None:
                ready.close()

    def _fail(self, ready: ChunkMap | None, error: Exception) -> None:
        reason = _reason(error)
        self._error = WeightsError(reason)
        if ready is not None:
            ready.fail(reason)

    def _fill_map(self, ready: ChunkMap, lock: int) -> None:
        ready.forget()  # what it says of failures from now on is of this try
        distrust(ready, self.plan, self.paths)
        ready.begin()
        self._settled.set()
        engine = EngineFolder(self.paths, self.plan, ready)
        engine.look()
        self._transfer = Transfer(
            self.plan,
            self.paths.partial,
            ready,
            options=self._options,
            peers=self._peers,
            inherit=(lock,),
        )
        if self._closed.is_set():
            return
        with FileHashes(self.paths, self.plan, ready) as hashes:

            def arrived(chunk: Chunk) -> None:
                engine.look(chunk)
                hashes.look(chunk)

            self.outcome = self._transfer.run(arrived)
            if self.outcome is not None:
                publish(self.paths, self.plan, ready, hashes)


def _reason(error: Exception) -> str:
    """What a failure is called, on disk too. Texts of libraries may quote headers and addresses."""
    if isinstance(error, DrayError):
        return str(error)
    place = error.filename if isinstance(error, OSError) and isinstance(error.filename, str) else None
    told = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
    return f"{type(error).__name__}{told}{f': {place}' if place else ''}"
