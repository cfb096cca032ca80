"""Cut a shard in two, so that the row under which engines die is found by halving."""

from __future__ import annotations

from dray.requests.objects import ObjectStoreOptions
from dray.requests.spool import index_of, read_shard
from dray.store import Shard, ShardSpec


def halves(shard: Shard, done: frozenset[int], options: ObjectStoreOptions | None = None) -> list[ShardSpec]:
    """Two parts that hold about as many rows without an outcome each; one such row must be in both.

    ``done`` are the terminal indexes of the shard. Reads the shard's bytes once, in pieces.
    """
    total = undone = cut_rows = 0
    offset = cut_offset = shard.offset
    cut_index = shard.first_index
    half = (shard.remaining + 1) // 2
    for chunk in read_shard(shard.uri, shard.offset, shard.length, options=options):
        for line in chunk:
            index = index_of(line)
            if index not in done:
                undone += 1
                if undone == half + 1:
                    cut_rows, cut_offset, cut_index = total, offset, index
            total += 1
            offset += len(line) + 1
    first = ShardSpec(
        number=-1,
        uri=shard.uri,
        offset=shard.offset,
        length=cut_offset - shard.offset,
        rows=cut_rows,
        first_index=shard.first_index,
        last_index=cut_index,
    )
    second = ShardSpec(
        number=-1,
        uri=shard.uri,
        offset=cut_offset,
        length=shard.offset + shard.length - cut_offset,
        rows=shard.rows - cut_rows,
        first_index=cut_index,
        last_index=shard.last_index,
    )
    return [first, second]
