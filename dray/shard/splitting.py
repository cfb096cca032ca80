"""Split a shard, so that the row under which engines die is found by halving."""

from __future__ import annotations

import itertools

from dray.requests.spool import index_of, read_shard
from dray.storage.objects import ObjectStoreOptions
from dray.store import Shard, ShardSpec


def parts_of(
    shard: Shard, done: frozenset[int], fed: int | None, options: ObjectStoreOptions | None = None
) -> list[ShardSpec]:
    """Two halves of the rows that an engine died under, and the rows that never came to it, unsuspected.

    ``done`` are the terminal indexes of the shard, and ``fed`` is the last index that the engine was given;
    None is for all. At least two rows without an outcome must be in the shard. Reads its bytes once.
    """
    bound = shard.last_index if fed is None else fed + 1
    rows = _Rows(shard, done, options)
    suspects = [index for index in rows.undone if index < bound] or rows.undone
    cuts = [suspects[len(suspects) // 2]] if len(suspects) > 1 else []
    if len(suspects) < len(rows.undone):
        cuts.append(rows.undone[len(suspects)])
    edges = [shard.first_index, *cuts, shard.last_index]
    return [
        rows.part(first, last, suspect=first <= suspects[-1]) for first, last in itertools.pairwise(edges)
    ]


class _Rows:
    """Where each row of a shard begins, and which have no outcome, by index."""

    def __init__(self, shard: Shard, done: frozenset[int], options: ObjectStoreOptions | None) -> None:
        self._shard = shard
        self._starts: dict[int, tuple[int, int]] = {}  # index to (rows before it, its offset)
        self.undone: list[int] = []
        offset = shard.offset
        for chunk in read_shard(shard.uri, shard.offset, shard.length, options=options):
            for line in chunk:
                index = index_of(line)
                self._starts[index] = (len(self._starts), offset)
                if index not in done:
                    self.undone.append(index)
                offset += len(line) + 1

    def part(self, first: int, last: int, *, suspect: bool) -> ShardSpec:
        """The rows in [``first``, ``last``); both are rows of the shard or its bounds."""
        shard = self._shard
        begin = (0, shard.offset) if first == shard.first_index else self._starts[first]
        whole = (shard.rows, shard.offset + shard.length)
        end = whole if last == shard.last_index else self._starts[last]
        return ShardSpec(
            number=-1,
            uri=shard.uri,
            offset=begin[1],
            length=end[1] - begin[1],
            rows=end[0] - begin[0],
            first_index=first,
            last_index=last,
            suspect=suspect,
        )
