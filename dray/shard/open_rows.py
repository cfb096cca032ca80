"""The rows of a shard that have no outcome yet, found as its lines are read from the spool.

A spool holds rows in any order, so only its lines say which rows are a shard's. The store is asked for these,
some at a time, and no more once it has named as many as there are: of a new shard it is asked nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dray.requests.model import Outcome
from dray.requests.spool.spool import index_of, read_shard
from dray.storage.objects import ObjectStoreOptions
from dray.store import Shard, Store

ASKED_ROWS = 1024
"""Rows of one question: look-ups by primary key, 1 to 2 ms on SQLite and 8 ms on PostgreSQL."""

Ask = Callable[[Sequence[int]], Collection[int]]
"""Gives those of some indexes that have an outcome."""


class Finished:
    """Which rows of a shard have an outcome: ``count`` in all. For one reading of its lines."""

    def __init__(self, ask: Ask, count: int) -> None:
        self.found = 0
        self._ask = ask
        self._count = count

    @classmethod
    def of(cls, store: Store, job_id: str, count: int) -> Finished:
        """The finished rows of a job, read from the store."""
        return cls(partial(store.done_indexes, job_id), count)

    @property
    def complete(self) -> bool:
        """Whether all were found: the rows that follow are open."""
        return self.found >= self._count

    def among(self, indexes: Sequence[int]) -> frozenset[int]:
        """Which of ``indexes`` have an outcome."""
        if self.complete:
            return frozenset()
        done = frozenset(self._ask(indexes))
        self.found += len(done)
        return done


@dataclass(frozen=True, slots=True)
class OpenLines:
    """Lines of the spool whose rows have no outcome, and the position after each row that was looked at.

    ``refused`` are those of them that are no request after all; only rows with files have any.
    """

    lines: list[bytes]
    ends: list[int]
    refused: Sequence[Outcome] = ()

    @property
    def end(self) -> int:
        """The position after the last of them."""
        return self.ends[-1]


class Rows:
    """The rows of a shard that are still to run, in chunks, of which the last is known as such."""

    def __init__(self, chunks: Iterator[OpenLines]) -> None:
        self._chunks = chunks
        self._held: deque[OpenLines] = deque()
        self._hold()

    def _hold(self) -> bool:
        found = next(self._chunks, None)
        if found is not None:
            self._held.append(found)
        return found is not None

    @property
    def first(self) -> bytes | None:
        """The line that is taken next; None when all are."""
        while not any(chunk.lines for chunk in self._held) and self._hold():
            pass  # of the chunks so far, all rows were refused
        return next((line for chunk in self._held for line in chunk.lines), None)

    def take(self) -> tuple[OpenLines | None, bool]:
        """The next chunk, and whether it is the last one; None when all is done from the start."""
        chunk = self._held.popleft() if self._held else None
        return chunk, not self._held and not self._hold()


def open_lines(
    shard: Shard, finished: Finished, options: ObjectStoreOptions | None = None, *, chunk_rows: int = 256
) -> Iterator[OpenLines]:
    """What is to be run of a shard, in the order of the spool, up to ``chunk_rows`` at a time.

    Raises:
        JobFailedError: the spool is gone or cut short.
    """
    rows = chunk_rows if finished.complete else max(chunk_rows, ASKED_ROWS)
    begin = shard.first_position
    for lines in read_shard(shard.uri, shard.offset, shard.length, chunk_rows=rows, options=options):
        kept = _open(lines, finished)
        for start in range(0, len(kept), chunk_rows):
            piece = kept[start : start + chunk_rows]
            yield OpenLines([lines[place] for place in piece], [begin + place + 1 for place in piece])
        begin += len(lines)


def _open(lines: list[bytes], finished: Finished) -> Sequence[int]:
    """Places in ``lines`` of the rows without an outcome."""
    if finished.complete:
        return range(len(lines))
    indexes = [index_of(line) for line in lines]
    done = finished.among(indexes)
    return [place for place, index in enumerate(indexes) if index not in done]
