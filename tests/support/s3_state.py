"""What all processes of the emulator share: how it is to behave, and what it has served."""

from __future__ import annotations

import ctypes
import json
import mmap
import multiprocessing
import time
from dataclasses import asdict, dataclass
from typing import Any

OBJECTS = 4096  # different ones that can be counted


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """How requests for objects are answered. Shares are of requests, 0 to 1; rates in bytes/s, 0 for none."""

    connection_rate: float = 0.0
    node_rate: float = 0.0
    first_byte_seconds: float = 0.0
    busy_share: float = 0.0  # 503 SlowDown
    slow_share: float = 0.0
    slow_rate: float = 1e6
    stall_share: float = 0.0  # sends half, then nothing, with the connection open
    cut_share: float = 0.0  # closes the connection half-way
    short_share: float = 0.0  # says and sends less than was asked for
    corrupt_share: float = 0.0  # one bit of the body is wrong
    whole_share: float = 0.0  # 200 and the whole object instead of the range
    elsewhere_share: float = 0.0  # Content-Range of another range
    no_conditions: bool = False  # 501 for writes with If-Match or If-None-Match
    equal_parts: bool = False  # as R2: 400 InvalidPart for uploads with parts of several sizes
    conflict_share: float = 0.0  # 409 ConditionalRequestConflict for such writes
    access_key: str | None = None  # others get 403
    refuses: str = ""  # 403 for "uploads" in parts, or for their "aborts"
    expires_after: int | None = None  # requests, then 403 ExpiredToken
    page_entries: int = 1000  # of a dataset's folder
    changes_after: int | None = None  # requests for objects, then every object has another ETag


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What holds for one request. ``asked`` counts requests since the behaviour was set, with this one."""

    behaviour: Behaviour
    asked: int
    changed: bool


class _Shared(ctypes.Structure):
    _fields_ = (
        ("behaviour", ctypes.c_char * 4096),  # JSON
        ("settings", ctypes.c_uint64),  # of the behaviour, so far
        ("requests", ctypes.c_uint64),
        ("objects", ctypes.c_uint64),  # requests for objects
        ("free_at", ctypes.c_double),  # when the node's rate lets more bytes pass
        ("named", ctypes.c_uint64),  # of the names below
        ("served", ctypes.c_uint64 * OBJECTS),
        ("names", (ctypes.c_char * 1024) * OBJECTS),
    )


class State:
    """Shared with every process forked after it was made; a lock guards it between processes and threads."""

    def __init__(self) -> None:
        self._shared = _Shared.from_buffer(mmap.mmap(-1, ctypes.sizeof(_Shared)))
        self._guard = multiprocessing.get_context("fork").Lock()
        self._behaviour, self._settings = Behaviour(), 0
        self._places: dict[str, int] = {}

    def behave(self, behaviour: Behaviour) -> None:
        """From the next request on; they are counted from here."""
        text = json.dumps(asdict(behaviour)).encode()
        with self._guard:
            self._shared.behaviour = text
            self._shared.settings += 1
            self._shared.requests = self._shared.objects = 0

    def turn(self, *, is_object: bool) -> Turn:
        """Count a request, and say what holds for it."""
        with self._guard:
            behaviour, before = self._current(), self._shared.objects
            self._shared.requests += 1
            self._shared.objects += is_object
            asked = self._shared.requests
        changed = behaviour.changes_after is not None and before >= behaviour.changes_after
        return Turn(behaviour=behaviour, asked=asked, changed=changed)

    def wait(self, size: int, rate: float) -> None:
        """Until ``size`` bytes may pass at ``rate``, which all connections have together."""
        if not rate:
            return
        with self._guard:
            now = time.monotonic()
            self._shared.free_at = max(self._shared.free_at, now - 0.01) + size / rate
            wait = self._shared.free_at - now
        if wait > 0:
            time.sleep(wait)

    def count(self, name: str, size: int) -> None:
        """That many bytes of an object's body were sent."""
        with self._guard:
            self._shared.served[self._place(name)] += size

    def forget(self) -> None:
        """What was served."""
        with self._guard:
            ctypes.memset(self._shared.served, 0, ctypes.sizeof(self._shared.served))

    def told(self) -> dict[str, Any]:
        """All of it, for the emulator's own pages."""
        with self._guard:
            self._learn()
            served = {name: self._shared.served[place] for name, place in self._places.items()}
            return {
                "behaviour": asdict(self._current()),
                "served": {name: size for name, size in served.items() if size},
                "requests": self._shared.requests,
                "object_requests": self._shared.objects,
            }

    def _current(self) -> Behaviour:
        if self._settings != self._shared.settings:
            self._behaviour = Behaviour(**json.loads(self._shared.behaviour))
            self._settings = self._shared.settings
        return self._behaviour

    def _place(self, name: str) -> int:
        """Where the object's bytes are counted; the same in all processes."""
        if name not in self._places:
            self._learn()
        if name not in self._places:
            place = self._shared.named
            self._shared.names[place].value = name.encode()
            self._shared.named = place + 1
            self._places[name] = place
        return self._places[name]

    def _learn(self) -> None:
        """The names that other processes added."""
        for place in range(len(self._places), self._shared.named):
            self._places[self._shared.names[place].value.decode()] = place
