"""A query on a real PostgreSQL as the input of a job."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dray.errors import InputError
from dray.requests.ingest import cut, ingest
from dray.requests.reading import queries
from dray.requests.reading.queries import query_rows
from dray.requests.row_shape import RowShape
from dray.requests.sources import SqlQuery
from dray.requests.spool.spool import decode, read_shard
from dray.requests.validate import BadRow
from tests.support.postgres import PostgresServer
from tests.support.sources import source_of

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with PostgresServer() as server:
        name = server.create_database()
        with server.connect(name) as connection:
            connection.execute(
                "create table t as select n, 'ünï % : ' || n as body, n * 1.5 as price "
                "from generate_series(1, 3000) n"
            )
        yield server.url(name)


def test_rows_are_streamed_in_order(url: str, tmp_path: Path) -> None:
    query = "select n::text as id, body, price from t where body like '%:%' order by n"
    source = source_of(url.replace("+psycopg", ""), query=query, template="{body} at {price}", id_column="id")
    ingested = ingest(source, spool_uri=str(tmp_path / "spool"))
    [part] = cut(ingested, target_rows=5000)
    lines = [line for chunk in read_shard(part.uri, part.offset, part.length) for line in chunk]
    found = [(r.custom_id, r.body["messages"][0]["content"]) for r in map(decode, lines)]
    assert found[:2] == [("1", "ünï % : 1 at 1.5"), ("2", "ünï % : 2 at 3.0")]
    assert len(found) == 3000


def test_what_the_database_says_is_told_without_the_password(url: str, tmp_path: Path) -> None:
    source = source_of(url, query="select nope from t", prompt_column="body")
    with pytest.raises(InputError, match="nope") as caught:
        ingest(source, spool_uri=str(tmp_path / "spool"))
    assert [problem.code for problem in caught.value.problems] == ["query_failed"]
    missing = source_of(url, query="select body from t", prompt_column="text")
    with pytest.raises(InputError, match="body") as caught:
        ingest(missing, spool_uri=str(tmp_path / "spool"))
    assert [(p.code, p.field) for p in caught.value.problems] == [("missing_column", "text")]


def test_large_rows_come_few_at_a_time_and_long_texts_are_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON has the limit that its texts have."""
    asked: list[int] = []
    fetch = psycopg.ServerCursor.fetchmany

    def counted(cursor: psycopg.ServerCursor[Any], size: int = 0) -> Any:
        asked.append(size)
        return fetch(cursor, size)

    monkeypatch.setattr(psycopg.ServerCursor, "fetchmany", counted)
    monkeypatch.setattr(queries, "BATCH_BYTES", 1 << 20)
    query = (
        "select n, case n when 20 then repeat('x', 300) else body end as body, "
        "json_build_array(case n when 21 then repeat('x', 300) else body end) as chat, "
        "convert_to(repeat('i', case when n > 32 then 100000 else 9 end), 'UTF8') as image "
        "from t where n <= 110 order by n"
    )
    source = source_of(url, query=query, template="{body}{chat}")
    assert isinstance(source, SqlQuery)
    rows = list(query_rows(source, 200))
    assert [number for number, _ in rows] == list(range(1, 111))
    found = [row.code if isinstance(row, BadRow) else row["n"] for _, row in rows]
    assert found == [*range(1, 20), "line_too_long", "line_too_long", *range(22, 111)]
    assert asked == [1, 31, 64, 10, 10, 10]  # SQLAlchemy fetches the first row on its own


def test_times_that_python_cannot_hold_come_as_the_database_writes_them(url: str) -> None:
    """One of them ended the query; of a month psycopg makes 30 days."""
    written = {
        "'infinity'::timestamptz": "infinity",
        "'-infinity'::date": "-infinity",
        "'0044-03-15 BC'::timestamp": "0044-03-15 00:00:00 BC",
        "'24:00'::time": "24:00:00",
        "'1 year 1 month'::interval": "1 year 1 mon",
        "'2024-02-29 12:00+00'::timestamptz": datetime(2024, 2, 29, 12, tzinfo=UTC),
        "'2024-02-29'::date": date(2024, 2, 29),
    }
    query = f"select {', '.join(f'{value} as c{place}' for place, value in enumerate(written))}"
    template = "".join(f"{{c{place}}}" for place in range(len(written)))
    [(_, row)] = query_rows(SqlQuery(url=url, query=query, shape=RowShape(template=template)), 1000)
    assert isinstance(row, dict)
    assert list(row.values()) == list(written.values())
