"""Sessions of the step loop: the rows of shard attempts on their way through the engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dray.engine.batches import size_of
from dray.errors import LeaseLapsedError
from dray.requests.model import Outcome, Request

SILENCE_SECONDS = 60.0
"""How long a shard task in another process may say nothing before its session ends: it is dead, or frozen.

It says something with each call of ``feed``, and between these that it lives (`dray.shard.lease`). A lease
lasts longer, so a task that was silent for so long is about to lose its shard.
"""


class Session:
    """The rows of one shard attempt on their way through the engine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: deque[bytes] = deque()
        self.finished: list[Outcome] = []
        self.ready = 0  # bytes of the answers in `finished`
        self.unfinished: dict[int, tuple[int, int]] = {}  # engine key -> sequences, bytes
        self.in_hand = 0  # taken by the loop, not yet in `unfinished`
        self.fed = 0  # calls of `feed` that arrived
        self.feeds: int | None = None  # how many there are in all, once that is known
        self.aborted = False
        self.left = False  # rows of it were handed back undone
        self.heard: float | None = None  # monotonic, of a shard task elsewhere; None: it is in this process
        self.silent = False  # it was aborted because its shard task said nothing

    def finish(self, outcome: Outcome) -> None:
        """An outcome is there to be read."""
        self.finished.append(outcome)
        self.ready += size_of(outcome)

    def check_heard(self) -> None:
        """Raise LeaseLapsedError where it was aborted for silence. The replica lives: it is not to blame."""
        if self.silent:
            raise LeaseLapsedError(
                "the replica heard nothing of this attempt for too long, and dropped its rows"
            )

    @property
    def busy(self) -> bool:
        """Whether rows are inside the engine, or just on their way into it."""
        return bool(self.unfinished or self.in_hand)

    @property
    def fed_all(self) -> bool:
        """Whether every row is here."""
        return self.feeds is not None and self.fed >= self.feeds

    @property
    def over(self) -> bool:
        """Whether nothing more can come out."""
        return self.aborted or (self.fed_all and not self.left and not self.waiting and not self.busy)


class Sessions:
    """The sessions of a step loop whose readers have not seen their end, by name. Names are used once."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}
        self._aborted: dict[str, bool] = {}  # names whose late rows are dropped -> whether for silence

    def __iter__(self) -> Iterator[Session]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def of(self, name: str) -> Session:
        """The session of this name, made at first use."""
        session = self._open.get(name)
        if session is None:
            session = Session(name)
            if name in self._aborted:
                session.aborted, session.silent = True, self._aborted[name]
            else:
                self._open[name] = session
        return session

    def heartbeat(self, name: str) -> None:
        """The shard task of a session lives. What was never fed, or is over, stays so."""
        session = self._open.get(name)
        if session is not None and session.heard is not None:
            session.heard = time.monotonic()

    def silent(self, seconds: float, late: float) -> list[str]:
        """Sessions silent for so long. In ``late`` seconds of it the replica itself could not listen."""
        for session in self if late else ():
            session.heard = None if session.heard is None else session.heard + late
        since = time.monotonic() - seconds
        return [one.name for one in self if one.heard is not None and one.heard < since]

    def forget(self, name: str) -> None:
        """Forget a session whose reader has seen its end."""
        self._open.pop(name, None)

    def abort(self, name: str, *, silent: bool) -> Session | None:
        """Take a session out, and drop what still comes for it; None where there is none."""
        self._aborted.setdefault(name, silent)
        session = self._open.pop(name, None)
        if session is not None:
            session.aborted, session.silent = True, silent
            session.waiting.clear()
        return session


@dataclass(slots=True)
class Taken:
    """A row between its session and the engine. It is read once, and then waits until it fits."""

    session: Session
    line: bytes
    request: Request | None = None
    sequences: int = 1
