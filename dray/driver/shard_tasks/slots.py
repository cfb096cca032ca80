"""How many shards run on a replica at a time, so that its engine never waits for the next one."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from dray.job.rows.ingesting import open_shards
from dray.store import Shard

LEAST_SLOTS = 2
"""Shards at a time on a replica: the tail of one overlaps the head of the next."""

MOST_SLOTS = 4
"""The same for shards that are smaller than an engine's batch. Each one is a process on a stable node."""


def slots_of(max_num_seqs: int, shard_rows: float) -> int:
    """The shards of ``shard_rows`` rows for a replica whose engine runs ``max_num_seqs`` at a time.

    While one of them ends and its successor begins, the others hold two batches: one runs, one waits.
    """
    others = ceil(2 * max_num_seqs / max(shard_rows, 1.0))
    return max(LEAST_SLOTS, min(others + 1, MOST_SLOTS))


def mean_rows(shards: Iterable[Shard]) -> float:
    """Rows of a shard that is still open, on average; without end where none is."""
    left = [shard.rows for shard in open_shards(shards)]
    return sum(left) / len(left) if left else float("inf")
