"""Bring a model into a folder: the schedule's decisions, carried out by fetch processes."""

from __future__ import annotations

import errno
import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dray.errors import WeightsError
from dray.storage.faults import BusyError
from dray.storage.objects import ObjectStoreOptions
from dray.storage.retries import LONGEST_PAUSE, tell_pause
from dray.weights.fetch import fetcher
from dray.weights.fetch.chunks import Chunk, ChunkPlan
from dray.weights.fetch.limits import FetchLimits
from dray.weights.fetch.origin import Address, Origin
from dray.weights.fetch.reasons import reason_of
from dray.weights.fetch.schedule import ORIGIN, FetchRequest, Schedule, Turn
from dray.weights.node.ready import ChunkMap

FLOOR_RATE = 50e3
"""Bytes/s below which one connection is given up and the chunk asked for again."""

MAX_PROCESSES = 8
_BYTES_A_PROCESS = 64 << 20
_TICK_SECONDS = 0.05
_PEERS_EVERY = 0.25
_BEAT_EVERY = 5.0
_MAX_RESTARTS = 10  # of fetch processes, in one transfer


class Peers(Protocol):
    """Other nodes that hold, or are fetching, the same model."""

    def turn(self, chunk: int) -> Turn:
        """When this node may ask the origin for a chunk."""

    def look(self) -> Mapping[str, bytes]:
        """Which chunks each live peer has, one byte per chunk.

        The transfer's loop calls it, so it must not block long.
        """

    def address(self, peer: str, file: str) -> Address:
        """Where a peer serves a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """What a transfer did. ``bytes_from`` is by source, the origin under the empty name."""

    bytes_from: dict[str, int]
    faults: dict[str, int]
    hedges: int


class Transfer:
    """Fetches what is not marked yet. One thread runs it; ``stop`` may come from any."""

    def __init__(
        self,
        plan: ChunkPlan,
        folder: Path,
        ready: ChunkMap,
        *,
        options: ObjectStoreOptions | None,
        peers: Peers | None,
        inherit: tuple[int, ...],
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._ready = ready
        self._origin = Origin(plan.manifest, options)
        self._peers = peers
        self._limits = FetchLimits()
        self._processes = max(1, min(MAX_PROCESSES, os.cpu_count() or 1))
        self._inherit = inherit
        self._stopped = False

    def stop(self) -> None:
        """End soon, with what is there."""
        self._stopped = True

    def run(self, on_chunk: Callable[[Chunk], None] = lambda chunk: None) -> Transferred | None:
        """Fetch until all chunks are ready; None when it was stopped.

        ``on_chunk`` is called for each chunk once it is marked.

        Raises:
            WeightsError: it cannot be had; says which file and range, and why.
            FileNotFoundError: its folder was removed meanwhile.
        """
        marks = self._ready.marks
        left = [number for number in self._plan.order if not marks[number]]
        began = time.monotonic()
        turn = self._peers.turn if self._peers is not None else (lambda chunk: Turn(0, ORIGIN))
        chunk_bytes = self._plan.manifest.chunk_bytes
        slowest = chunk_bytes / FLOOR_RATE + 2 * fetcher.STALL_SECONDS
        schedule = Schedule(left, now=began, turn=turn, limits=self._limits, slowest=slowest)
        crew = _Crew(self._files(), chunk_bytes, self._processes_for(left), self._inherit)
        files = dict.fromkeys(self._plan.chunks[number].file for number in left)
        self._origin.expect(self._plan.manifest.files[file] for file in files)
        try:
            self._loop(schedule, crew, on_chunk)
        finally:
            self._origin.close()
            crew.end()
        if schedule.failure is not None:
            who = self._origin.principal()
            raise WeightsError(reason_of(schedule.failure, self._plan, self._folder, who))
        if not schedule.complete:
            return None
        return Transferred(
            bytes_from=dict(schedule.bytes_from),
            faults=dict(schedule.faults),
            hedges=schedule.hedges,
        )

    def _processes_for(self, left: list[int]) -> int:
        """How many processes there is work for: each takes a moment to start."""
        size = sum(self._plan.chunks[number].size for number in left)
        return max(1, min(self._processes, size // _BYTES_A_PROCESS))

    def _files(self) -> list[Path]:
        return [self._folder / file.name for file in self._plan.manifest.files]

    def _loop(self, schedule: Schedule, crew: _Crew, on_chunk: Callable[[Chunk], None]) -> None:
        asks: dict[int, FetchRequest] = {}
        looked = beaten = float("-inf")
        while not (schedule.complete or schedule.failure or self._stopped):
            now = time.monotonic()
            if self._ready.removed:  # the files, too: what comes would be written to no name
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._folder))
            if self._peers is not None and now - looked > _PEERS_EVERY:
                schedule.learn(self._peers.look(), now)
                looked = now
            while (ask := schedule.next(now)) is not None:
                asks[ask.number] = ask
                self._send(schedule, crew, ask, now)
            if now - beaten > _BEAT_EVERY and (schedule.paused(now) or schedule.slow(now)):
                self._ready.beat()  # the processes that wait for chunks wait on
                beaten = now
            for answer in crew.answers(_TICK_SECONDS):
                self._take(schedule, asks.pop(answer["order"]), answer, on_chunk)
            if crew.replace_dead():
                asks.clear()
                schedule.lost(time.monotonic())

    def _send(self, schedule: Schedule, crew: _Crew, ask: FetchRequest, now: float) -> None:
        chunk = self._plan.chunks[ask.chunk]
        file = self._plan.manifest.files[chunk.file]
        try:
            if ask.source == ORIGIN:
                address = self._origin.address(file, fresh=ask.fresh_credentials)
                etag: str | None = file.etag or None
            else:
                assert self._peers is not None
                address = self._peers.address(ask.source, file.name)
                etag = None
        except (OSError, KeyError) as error:
            after = error.after if isinstance(error, BusyError) else None
            crew.answer_at_once(
                {"order": ask.number, "error": _kind(error), "detail": str(error), "after": after}
            )
            return
        expected = self._plan.expected(ask.chunk)
        order = {
            "order": ask.number,
            "peer": ask.source != ORIGIN,
            "url": address.url,
            "headers": address.headers,
            "etag": etag,
            "file": chunk.file,
            "start": chunk.start,
            "end": chunk.end,
            "size": file.size,
            "digest": expected.hex() if expected else None,
            "floor": FLOOR_RATE,
        }
        crew.send(order)

    def _take(
        self, schedule: Schedule, ask: FetchRequest, answer: dict[str, Any], on_chunk: Callable[[Chunk], None]
    ) -> None:
        now = time.monotonic()
        if "error" in answer:
            if answer["error"] == "moved" and ask.source == ORIGIN:
                self._origin.moved(self._plan.manifest.files[self._plan.chunks[ask.chunk].file])
            paused = schedule.paused(now)
            schedule.failed(ask, answer["error"], answer["detail"], now, after=answer.get("after"))
            if not paused and schedule.paused(now):
                tell_pause(self._plan.manifest.uri, min(answer["after"], LONGEST_PAUSE))
            return
        chunk = self._plan.chunks[ask.chunk]
        if schedule.done(ask, now, chunk.size):
            self._ready.mark(ask.chunk, bytes.fromhex(answer["digest"]))
            on_chunk(chunk)


def _kind(error: Exception) -> str:
    """Why an address could not be had, as the schedule counts it."""
    if isinstance(error, PermissionError):
        return "denied"
    if isinstance(error, FileNotFoundError):
        return "missing"
    return "busy" if isinstance(error, BusyError) else "network"


class _Crew:
    """The fetch processes. They hold the model's lock too: no other process fills it while one lives."""

    def __init__(self, files: list[Path], chunk_bytes: int, processes: int, inherit: tuple[int, ...]) -> None:
        self._command = [sys.executable, "-P", fetcher.__file__, str(chunk_bytes), *map(str, files)]
        self._inherit = inherit
        self._selector = selectors.DefaultSelector()
        self._members: list[subprocess.Popen[bytes]] = []
        self._rests: dict[int, bytes] = {}
        self._ready_answers: list[dict[str, Any]] = []
        self._load: Counter[int] = Counter()  # orders by pid
        self._holder: dict[int, int] = {}
        self._writers: dict[tuple[int, int], subprocess.Popen[bytes]] = {}  # by file and offset
        self._restarts = 0
        for _ in range(processes):
            self._add()

    def send(self, order: dict[str, Any]) -> None:
        """Give an order to the member that has the fewest, or that was asked for the same chunk before.

        That member writes only the first of several answers: a chunk that engines read never changes.
        """
        place = (order["file"], order["start"])
        member = self._writers.get(place) or min(self._members, key=lambda one: self._load[one.pid])
        self._writers[place] = member
        self._load[member.pid] += 1
        self._holder[order["order"]] = member.pid
        assert member.stdin is not None
        with suppress(BrokenPipeError):  # its end is seen by replace_dead
            member.stdin.write(json.dumps(order | {"threads": self._load[member.pid]}).encode() + b"\n")
            member.stdin.flush()

    def answer_at_once(self, answer: dict[str, Any]) -> None:
        """An order that need not be sent to be answered."""
        self._ready_answers.append(answer)

    def answers(self, timeout: float) -> list[dict[str, Any]]:
        """What came within ``timeout`` seconds."""
        found, self._ready_answers = self._ready_answers, []
        for key, _ in self._selector.select(0 if found else timeout):
            data = os.read(key.fd, 1 << 20)
            if not data:
                self._selector.unregister(key.fd)
                continue
            *lines, rest = (self._rests.get(key.fd, b"") + data).split(b"\n")
            self._rests[key.fd] = rest
            for answer in map(json.loads, lines):
                self._load[self._holder.pop(answer["order"])] -= 1
                found.append(answer)
        return found

    def replace_dead(self) -> bool:
        """Whether a member had ended; all are replaced then, so that no order is in doubt."""
        if all(member.poll() is None for member in self._members):
            return False
        self._restarts += 1
        if self._restarts > _MAX_RESTARTS:
            raise WeightsError("the processes that fetch weights end again and again; is memory short?")
        count = len(self._members)
        self._stop_members()
        for _ in range(count):
            self._add()
        return True

    def end(self) -> None:
        """End all members, at once."""
        self._stop_members()
        self._selector.close()

    def _add(self) -> None:
        member = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=self._inherit,
        )
        assert member.stdout is not None
        self._members.append(member)
        self._selector.register(member.stdout, selectors.EVENT_READ)

    def _stop_members(self) -> None:
        for member in self._members:
            member.kill()
        for member in self._members:
            assert member.stdin is not None and member.stdout is not None
            with suppress(KeyError, ValueError):
                self._selector.unregister(member.stdout)
            with suppress(BrokenPipeError):
                member.stdin.close()
            member.stdout.close()
            member.wait()
        self._members, self._rests, self._holder, self._writers = [], {}, {}, {}
        self._load.clear()
