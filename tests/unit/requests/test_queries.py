"""SQL queries into requests: how many rows are fetched, and what is said of a query that fails."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from sqlalchemy.exc import ResourceClosedError

from dray.cli.preflight import preflight
from dray.errors import ConfigError, DrayError
from dray.job.options.request import JobRequest
from dray.requests.reading import queries
from dray.requests.reading.queries import _query_failed, check_database, query_name, query_rows
from dray.requests.reading.readers import ReadLimits, source_digest
from dray.requests.row_shape import RowShape
from dray.requests.sources import SqlQuery
from dray.requests.validate import BadRow
from tests.support.sources import source_of
from tests.unit.requests.taking import problems, prompts, take

pytestmark = pytest.mark.unit


def database(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    with sqlite3.connect(folder / "data.db") as connection:
        connection.execute("create table t (id text, body text)")
        connection.executemany("insert into t values (?, ?)", [(f"r{n}", f"text {n}") for n in range(3000)])
    connection.close()
    return f"sqlite:///{folder}/data.db"


def test_sql_query(tmp_path: Path) -> None:
    url = database(tmp_path)
    query = "select id, upper(body) as loud from t where body like '%:%' or 1 order by rowid"
    found = prompts(tmp_path, url, query=query, prompt_column="loud", id_column="id")
    assert found == [(f"r{n}", f"TEXT {n}") for n in range(3000)]


def fetches(source: SqlQuery, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each fetch of the query asked for."""
    from sqlalchemy import CursorResult

    asked: list[int] = []
    fetch = CursorResult.fetchmany

    def counted(result: CursorResult[Any], size: int) -> Any:
        asked.append(size)
        return fetch(result, size)

    monkeypatch.setattr(CursorResult, "fetchmany", counted)
    numbers = [number for number, _ in query_rows(source, 1 << 20)]
    assert numbers == list(range(1, len(numbers) + 1))
    return asked


def test_a_query_of_large_rows_fetches_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "BATCH_BYTES", 1 << 20)
    source = source_of(database(tmp_path), query="select body from t order by rowid", prompt_column="body")
    assert isinstance(source, SqlQuery)
    assert fetches(source, monkeypatch)[:7] == [32, 64, 128, 256, 512, 1024, 1024]
    numbers = "with recursive t(n) as (select 1 union all select n + 1 from t where n < 100)"
    query = f"{numbers} select 'a' as q, zeroblob(case when n > 32 then 100000 else 9 end) as image from t"
    source = source_of(database(tmp_path / "2"), query=query, prompt_column="q", image_column="image")
    assert isinstance(source, SqlQuery)
    assert fetches(source, monkeypatch) == [32, 64, 10, 10]


def test_texts_of_a_query_have_the_limit_of_lines(tmp_path: Path) -> None:
    """Not the images, and not what no row asks."""
    query = (
        "select rowid as n, case rowid when 2 then printf('%.*c', 300, 'x') else body end as q, "
        "printf('%.*c', 300, 'i') as image, printf('%.*c', 300, 'o') as other from t limit 3"
    )
    url = database(tmp_path)
    source = source_of(url, query=query, prompt_column="q", image_column="image")
    assert isinstance(source, SqlQuery)
    found = [row.code if isinstance(row, BadRow) else row["n"] for _, row in query_rows(source, 200)]
    assert found == [1, "line_too_long", 3]
    options: dict[str, Any] = {"query": query, "prompt_column": "q", "id_column": "n"}
    [problem] = problems(tmp_path, url, limits=ReadLimits(line_bytes=200), **options)
    assert (problem.code, problem.line) == ("line_too_long", 2)


@pytest.mark.parametrize("path", ["'a' || body", "body"])
def test_what_sqlite_says_of_the_first_row_is_not_shown(tmp_path: Path, path: str) -> None:
    query = f"select json_extract('{{}}', {path}) as a from t"  # 'bad JSON path: ...'
    [problem] = problems(tmp_path, database(tmp_path), query=query, prompt_column="a")
    assert "OperationalError" in problem.message
    assert "text 0" not in problem.message


def test_a_query_without_rows_says_so(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, database(tmp_path), query="savepoint here", prompt_column="a")
    assert "does not return rows" in problem.message


@pytest.mark.parametrize("query", ["select nope from t", "select id from nope"])
def test_a_query_that_fails_says_so(tmp_path: Path, query: str) -> None:
    [problem] = problems(tmp_path, database(tmp_path), query=query, prompt_column="id")
    assert problem.code == "query_failed"
    assert "nope" in problem.message


def test_a_query_neither_makes_nor_changes_a_database(tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path / 'dta.db'}"
    [problem] = problems(tmp_path, missing, query="select 1 as text", prompt_column="text")
    assert (problem.code, problem.message.partition(",")[0]) == ("missing_input", "no such file")
    assert list(tmp_path.glob("*.db")) == []
    query = "delete from t returning id as text"
    [problem] = problems(tmp_path, database(tmp_path), query=query, prompt_column="text")
    assert "readonly database" in problem.message
    with sqlite3.connect(tmp_path / "data.db") as connection:
        assert connection.execute("select count(*) from t").fetchone() == (3000,)


def test_a_text_of_sqlite_that_is_not_utf8_is_a_problem_of_its_row(tmp_path: Path) -> None:
    url = database(tmp_path)
    query = "select id, cast(x'6d792070617469656e7420e9' as text) as body from t limit 1"
    [problem] = problems(tmp_path, url, query=query, prompt_column="body")
    assert (problem.code, problem.line, problem.field) == ("invalid_text", 1, "body")
    assert "patient" not in str(problem)


def test_what_a_driver_says_of_a_row_is_not_shown(tmp_path: Path) -> None:
    query = "select case when rowid = 9 then json('{my patient') else 'a' end as body from t"
    [problem] = problems(tmp_path, database(tmp_path), query=query, prompt_column="body")
    assert problem.code == "query_failed"
    assert "OperationalError" in problem.message
    assert "malformed" not in problem.message


class _DriverError(Exception):
    def __init__(self, text: str, sqlstate: str | None = None) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


def _of(module: str, cause: Exception) -> Exception:
    """An error of the same name as a driver that is not installed has it."""
    kind: type[Exception] = type(type(cause).__name__, (type(cause),), {"__module__": module})
    return kind(*cause.args)


@pytest.mark.parametrize(
    ("cause", "stage", "shown"),
    [
        (sqlite3.OperationalError("no such table: word"), "asking", True),
        (sqlite3.OperationalError("bad JSON path: 'word'"), "asking", False),
        (sqlite3.OperationalError('fts5: syntax error near "word"'), "asking", False),
        (sqlite3.OperationalError("cannot decode: word"), "fetching", False),
        (_DriverError("login failed: word"), "connecting", True),
        (_DriverError("Could not convert string 'word' to INT32"), "asking", False),  # as DuckDB has it
        (_DriverError("Bad double value: word"), "asking", False),  # as BigQuery has it
        (_DriverError("relation word", "42P01"), "asking", True),
        (_DriverError("invalid input: word", "22P02"), "asking", False),
        (_DriverError("word", "42804"), "fetching", False),
        (_DriverError("the server stops: word", "57P01"), "fetching", True),
        (Exception("22018", "conversion of word failed"), "asking", False),  # as pyodbc has it
        (_of("pymssql._pymssql", Exception(245, b"Conversion failed: 'word'")), "asking", False),
        (_of("pymysql.err", Exception(1146, "Table 'word' doesn't exist")), "asking", True),
        (_of("pymysql.err", Exception(1292, "Truncated incorrect INTEGER value: 'word'")), "asking", False),
        (psycopg.OperationalError("the server closed: word"), "asking", True),
        (psycopg.DataError("can't parse timestamp 'word'"), "asking", False),
        (ResourceClosedError("word"), "asking", True),
        (ValueError("year out of range: word"), "fetching", False),
        (ValueError("year out of range: word"), "asking", False),  # a driver may read the first row here
    ],
)
def test_when_a_drivers_words_are_shown(
    cause: Exception, stage: Literal["connecting", "asking", "fetching"], shown: bool
) -> None:
    told = _query_failed(cause, stage)
    assert ("word" in told) is shown
    assert shown or type(cause).__name__ in told


def test_an_error_of_a_driver_without_text_is_told_by_its_class() -> None:
    told = _query_failed(_DriverError(""), "connecting")
    assert told == "the query cannot be read: _DriverError"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("duckdb:///rows.duckdb", "SQLAlchemy knows no duckdb here; install duckdb-engine"),
        (
            "postgress://me:hidden@h/db",
            "knows no postgress here; install the package that brings it, or corr",
        ),
        ("oracle+cx_oracle://me:hidden@h", "cx_Oracle is not installed; install its driver"),
        (
            "postgresql+asyncpg://me:hidden@h/db",
            "postgresql.asyncpg is for asyncio; name another driver, or postgresql://",
        ),
    ],
)
def test_a_database_that_cannot_be_asked_from_here_is_refused_first(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        check_database(SqlQuery(url=url, query="select 1", shape=RowShape(prompt_column="text")))
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("url", ["sqlite:///none.db", "env:ROWS"])
def test_the_command_line_looks_at_it_before_anything_starts(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWS", "duckdb:///rows.duckdb")
    rows = {"query": "select 1 as text", "prompt_column": "text"}
    given = {"input": url, "model": "simulated", "output": "out", "engine": {"name": "simulated"}}
    with pytest.raises(DrayError, match=r"no database to ask|install duckdb-engine"):
        preflight(JobRequest.of(**given, rows=rows))


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (_of("oracledb.exceptions", Exception("ORA-01722: unable to convert 'word' to number")), "ORA-01722"),
        (_of("oracledb.exceptions", Exception("DPY-4004: invalid number: word")), "DPY-4004"),
        (_of("pymssql._pymssql", Exception(245, b"Conversion failed: 'word'")), "error 245"),
        (_of("pymysql.err", Exception(1292, "Truncated incorrect INTEGER value: 'word'")), "error 1292"),
        (Exception("22018", "conversion of word failed"), "SQLSTATE 22018"),
    ],
)
def test_a_drivers_code_is_shown_where_its_words_are_not(cause: Exception, code: str) -> None:
    told = _query_failed(cause, "asking")
    assert f"Exception ({code}); " in told
    assert "word" not in told


@pytest.mark.parametrize("row", ["ORA-WORD", "a row with ORA-00942 in it", 4711])
def test_a_value_of_a_row_is_not_taken_for_a_code(row: object) -> None:
    told = _query_failed(_of("duckdb", Exception(row)), "asking")
    assert "Exception; " in told


def test_sqlite_names_its_code(tmp_path: Path) -> None:
    query = "select case when rowid = 9 then json('{my patient') else 'a' end as body from t"
    [problem] = problems(tmp_path, database(tmp_path), query=query, prompt_column="body")
    assert "OperationalError (SQLITE_ERROR); " in problem.message


def test_no_password_in_the_message(tmp_path: Path) -> None:
    url = "postgresql://joe:s3cret@127.0.0.1:1/db"
    [problem] = problems(tmp_path, url, query="select 1 as a", prompt_column="a")
    assert problem.code == "query_failed"
    assert "s3cret" not in str(problem)
    for url in ("joe:s3cret@nowhere", "postgresql://joe:p@s3:cret@host/db"):
        with pytest.raises(ConfigError) as caught:
            take(tmp_path, source_of(url, query="select 1", prompt_column="a"))
        assert "s3" not in str(caught.value)
        assert "cret" not in str(caught.value)


def test_a_password_in_the_query_of_a_url_is_neither_shown_nor_part_of_the_digest() -> None:
    def asked_as(password: str) -> SqlQuery:
        url = f"postgresql://joe@h/db?password={password}&sslmode=require&sslpassword={password}"
        return SqlQuery(url=url, query="select 1 as a", shape=RowShape(prompt_column="a"))

    name = query_name(asked_as("hunter2"))
    assert "hunter2" not in name
    assert "sslmode=require" in name
    assert source_digest(asked_as("hunter2")) == source_digest(asked_as("changed"))
