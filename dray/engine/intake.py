"""Rows between their sessions and the engine: taken in order, and kept in hand until they fit."""

from __future__ import annotations

from collections import deque

from dray.engine.admission import MAX_ADMITTED_BYTES, Held
from dray.engine.batches import BATCH_BYTES
from dray.engine.sessions import Sessions, Taken

ANSWER_BYTES = 16 * BATCH_BYTES
"""Bytes of answers that wait to be read: with as many the engine gets no more rows. A store may be slower."""


class Intake:
    """The rows in hand of a step loop. Its methods are called with the lock of the ``sessions``."""

    def __init__(self, sessions: Sessions, held: Held) -> None:
        self._sessions = sessions
        self._held = held
        self.rows: deque[Taken] = deque()

    def has_more(self) -> bool:
        """Whether a row waits to be admitted, and may be."""
        waits = self.rows or any(session.waiting for session in self._sessions)
        return bool(waits) and not self.is_full()

    def is_full(self) -> bool:
        """Whether so many finished answers wait to be read that no more are to come."""
        return sum(session.ready for session in self._sessions) >= ANSWER_BYTES

    def take(self, limit: int) -> bool:
        """Take lines that may fit, oldest session first: shards finish one after the other.

        False where nothing is left to admit.
        """
        if self.is_full():
            return False
        room = limit - self._held.sequences - len(self.rows)
        size = self._held.size + sum(len(taken.line) for taken in self.rows)
        for session in self._sessions:
            while session.waiting and room > 0:
                size += len(session.waiting[0])
                if size > MAX_ADMITTED_BYTES and (self._held.sequences or self.rows):
                    return bool(self.rows)
                self.rows.append(Taken(session, session.waiting.popleft()))
                session.in_hand += 1
                room -= 1
        return bool(self.rows)

    def drop(self, *, leaving: bool) -> bool:
        """Forget rows whose session was aborted, or that a replica which is ``leaving`` has for others.

        Returns:
            Whether there were any.
        """
        dropped = [taken for taken in self.rows if leaving or taken.session.aborted]
        if not dropped:
            return False
        for taken in dropped:
            taken.session.in_hand -= 1
            taken.session.left = taken.session.left or leaving
        self.rows = deque(taken for taken in self.rows if not leaving and not taken.session.aborted)
        return True
