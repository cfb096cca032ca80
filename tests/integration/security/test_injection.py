"""SQL injection: hostile texts in every column that takes one, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.requests.model import Outcome
from dray.store import ShardSpec, open_store
from tests.support.postgres import PostgresServer
from tests.support.stores import FINGERPRINT

pytestmark = pytest.mark.integration

HOSTILE = [
    "'; DROP TABLE results; --",
    '"; DROP TABLE shards; --',
    "x'); DELETE FROM jobs; --",
    "%s %(name)s :name ? $1 {0}",
    "\\'; SELECT pg_sleep(60); --",
    "\\\\.\nCOPY t FROM stdin;\t\\N",
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create_database())


def test_sql_injection_by_what_rows_and_nodes_say(url: str) -> None:
    """Ids, messages, answers, names of jobs, owners and replicas, settings: data, and never SQL."""
    count = len(HOSTILE)
    with open_store(url) as store:
        for name in HOSTILE:
            store.create_job(name, fingerprint=FINGERPRINT, settings={name: name})
            job = store.claim_job(name, name)
            store.merge_job_info(job, {name: name})
            shard = ShardSpec(number=0, uri=name, offset=0, length=1, rows=2 * count, first_position=0)
            store.add_shards(job, [shard], total_rows=2 * count)
            lease = store.claim_shard(job, 0, owner=name, replica=name)
            assert lease is not None
            rows = [Outcome(n, text, text.encode()) for n, text in enumerate(HOSTILE)]
            rows += [
                Outcome(
                    count + n,
                    f"{text}2",
                    error_code=text,  # type: ignore[arg-type]  # hostile: no code of dray's
                    error_message=text,
                )
                for n, text in enumerate(HOSTILE)
            ]
            store.commit(lease, rows)
            store.finish_shard(lease)
    with open_store(url, create=False) as store:
        assert {job.job_id for job in store.list_jobs(100)} == set(HOSTILE)
        for name in HOSTILE:
            found = store.get_job(name)
            assert (found.settings[name], found.info[name]) == (name, name)
            [attempt] = store.attempts(name)
            assert attempt.replica == name
            stored = [row for page in store.outcomes(name) for row in page]
            assert [row[1] for row in stored[:count]] == HOSTILE
            assert [bytes(row[2] or b"").decode() for row in stored[:count]] == HOSTILE
            assert [(row[3], row[4]) for row in stored[count:]] == [(text, text) for text in HOSTILE]
            counts = store.counts(name)
            assert (counts.done, counts.failed) == (count, count)
