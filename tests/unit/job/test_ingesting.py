"""Into how many shards a job is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dray.job.ingesting import _enough_shards, _most_shards, ingest_job
from dray.job.opening import open_job
from dray.job.settings import JobSettings
from dray.requests.spool import MAX_MARKS

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("replicas", [1, 4])
def test_rows_of_a_shard_that_are_given_are_kept(
    replicas: int, make_settings: Callable[..., JobSettings]
) -> None:
    shards = ingest_job(open_job(make_settings(shard_rows=10)), replicas=replicas)
    assert [shard.rows for shard in shards] == [10] * 5


def test_a_small_job_is_one_shard(make_settings: Callable[..., JobSettings]) -> None:
    assert len(ingest_job(open_job(make_settings()), replicas=4)) == 1


@pytest.mark.parametrize(
    ("requests", "replicas", "shards"),
    [(1, 4, 1), (127, 4, 1), (2_000, 3, 15), (36_000, 4, 64), (10_000_000, 4, 64), (36_000, 1, 1)],
)
def test_there_are_shards_for_a_replica_that_comes_back(requests: int, replicas: int, shards: int) -> None:
    assert _enough_shards(requests, replicas) == shards


@pytest.mark.parametrize(("replicas", "most"), [(1, 512), (32, 512), (64, 1024), (1000, 16_000)])
def test_no_replica_idles_for_lack_of_a_shard(replicas: int, most: int) -> None:
    assert _most_shards(replicas) == most <= MAX_MARKS // 2  # the spool can be cut into as many
    assert _enough_shards(10**9, replicas) <= most
