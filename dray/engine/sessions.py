"""Sessions of the step loop: the rows of shard attempts on their way through the engine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dray.engine.batches import size_of
from dray.requests.model import Outcome, Request


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

    def finish(self, outcome: Outcome) -> None:
        """An outcome is there to be read."""
        self.finished.append(outcome)
        self.ready += size_of(outcome)

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


@dataclass(slots=True)
class Taken:
    """A row between its session and the engine. It is read once, and then waits until it fits."""

    session: Session
    line: bytes
    request: Request | None = None
    sequences: int = 1
