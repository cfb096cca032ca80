"""How many shards a job has, and of how many rows: docs/interruptions.md says what that is worth."""

from __future__ import annotations

from dataclasses import dataclass

from dray.requests.spool.marks import Taper

ROWS = 8192
"""Rows of a shard at most, where the user says nothing: some minutes of work on one GPU."""

MANY_SHARDS = 16_384
"""Shards of a large job: they have 8192 rows each up to 134 million rows, and 61,125 of a billion.

Those are 20 minutes at 50 rows/s. The driver reads all shards when it looks which are open: 0.3 s of these,
and 3 s of four times as many.
"""

# A replica that comes back finds work only while there are shards that no replica has. The benchmark
# `python -m tests.benchmarks.interruptions --goodput` came to 0.75 with 2 per replica, to 0.94 with 16.
_PER_REPLICA = 16
_LAST_PER_REPLICA = 4  # shards that are smaller: two that run, and two that wait, when the larger ones end
_ROWS_WORTH_A_SHARD = 128  # splitting less than this costs more in tasks than it gives


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSizes:
    """The shards of a job on so many ``replicas``, each of which runs ``batch`` sequences at once.

    ``rows`` is the user's own number of rows a shard, None to choose one.
    """

    replicas: int
    batch: int
    rows: int | None = None

    @property
    def target_rows(self) -> int:
        """Rows of a shard at most, unless that makes more shards than ``most``."""
        return self.rows or ROWS

    @property
    def most(self) -> int:
        """How many shards the job has at most: none of its replicas is to idle for lack of one."""
        return max(MANY_SHARDS, self.replicas * _PER_REPLICA)

    def least(self, requests: int) -> int:
        """Shards for all replicas, of twice the rows of a batch where the job has so many ``requests``.

        While one shard task ends and the next one goes on, the replica lives on the rows of its other shards.
        ``python -m tests.benchmarks.device --only dray-twice --settings 1b``, 6,000 rows and a batch of 512:
        207 rows/s with 187 rows a shard, 686 with 1,200. A short job has two shards for each replica all the
        same.
        """
        if self.rows or self.replicas == 1:
            return 1
        worth = requests // _ROWS_WORTH_A_SHARD
        full = requests // self._full_rows
        return max(1, min(self.replicas * _PER_REPLICA, full), min(2 * self.replicas, worth))

    @property
    def taper(self) -> Taper | None:
        """The last shards of each replica are smaller, so that all replicas end at about the same time."""
        if self.rows or self.replicas == 1:
            return None
        return Taper(ranges=self.replicas * _LAST_PER_REPLICA, least_rows=self._full_rows)

    @property
    def _full_rows(self) -> int:
        """Rows of a shard that keep an engine busy while its other shard ends."""
        return max(_ROWS_WORTH_A_SHARD, 2 * self.batch)
