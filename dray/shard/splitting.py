"""Split a shard, so that the row under which engines die is found by halving."""

from __future__ import annotations

import itertools
from bisect import bisect_left

from dray.requests.spool.spool import index_of, read_shard
from dray.shard.open_rows import ASKED_ROWS, Finished
from dray.storage.objects import ObjectStoreOptions
from dray.store import Shard, ShardSpec


def parts_of(
    shard: Shard, finished: Finished, fed: int | None, options: ObjectStoreOptions | None = None
) -> list[ShardSpec]:
    """Two halves of the rows that an engine died under, and the rows that never came to it, unsuspected.

    ``fed`` is the position after the last row that the engine was given; None is for all. At least two rows
    without an outcome must be in the shard. Reads its bytes once.
    """
    bound = shard.last_position if fed is None else fed
    rows = _Rows(shard, finished, options)
    suspects = rows.open[: bisect_left(rows.open, bound)] or rows.open
    cuts = [suspects[len(suspects) // 2]] if len(suspects) > 1 else []
    if len(suspects) < len(rows.open):
        cuts.append(rows.open[len(suspects)])
    edges = [shard.first_position, *cuts, shard.last_position]
    return [
        rows.part(first, last, suspect=first <= suspects[-1]) for first, last in itertools.pairwise(edges)
    ]


class _Rows:
    """Where each row of a shard begins, and which have no outcome, by position."""

    def __init__(self, shard: Shard, finished: Finished, options: ObjectStoreOptions | None) -> None:
        self._shard = shard
        self._offsets = [shard.offset]  # of each row, and the end of the last
        self.open: list[int] = []
        for lines in read_shard(
            shard.uri, shard.offset, shard.length, chunk_rows=ASKED_ROWS, options=options
        ):
            indexes = [index_of(line) for line in lines]
            done = finished.among(indexes)
            begin = shard.first_position + len(self._offsets) - 1
            self.open += [position for position, index in enumerate(indexes, begin) if index not in done]
            for line in lines:
                self._offsets.append(self._offsets[-1] + len(line) + 1)

    def part(self, first: int, last: int, *, suspect: bool) -> ShardSpec:
        """The rows at the positions [``first``, ``last``)."""
        offset, end = (self._offsets[position - self._shard.first_position] for position in (first, last))
        to_run = bisect_left(self.open, last) - bisect_left(self.open, first)
        return ShardSpec(
            number=-1,
            uri=self._shard.uri,
            offset=offset,
            length=end - offset,
            rows=last - first,
            first_position=first,
            inherited=last - first - to_run,
            suspect=suspect,
            family=self._shard.family,
        )
