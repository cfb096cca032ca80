"""Migrations: running them all gives the schema that new databases get at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, text

import dray.store
from dray.errors import ConfigError, StoreFatalError
from dray.store import open_store
from dray.store.database.clock import DatabaseClock
from dray.store.database.connection import Database, Tx
from dray.store.database.schema import COMPATIBLE, REVISION, metadata
from dray.store.database.urls import parse_url
from dray.store.migrate import upgrade
from tests.support.older import made_by_older, revision_of
from tests.support.postgres import PostgresServer
from tests.support.stores import ready_job

pytestmark = pytest.mark.integration

_EMPTY_VERSION_TABLE = (
    "CREATE TABLE dray_version (version_num VARCHAR(32) NOT NULL, "
    "CONSTRAINT dray_version_pkc PRIMARY KEY (version_num))"
)


@pytest.fixture(params=["sqlite", "postgresql"])
def two_urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    if request.param == "sqlite":
        return str(tmp_path / "created.db"), str(tmp_path / "migrated.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create_database()), server.url(server.create_database())


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database without tables."""
    if request.param == "sqlite":
        return str(tmp_path / "old.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create_database())


def test_migrations_give_the_tables_of_the_code(two_urls: tuple[str, str]) -> None:
    created, migrated = two_urls
    open_store(created).close()
    database = Database(parse_url(migrated), clock=DatabaseClock(), patience=1)

    def run_all(tx: Tx) -> None:
        tx.connection.exec_driver_sql(_EMPTY_VERSION_TABLE)
        upgrade(tx.connection, None, migrated)

    database.write(run_all)
    database.close()
    open_store(migrated, create=False).close()  # already at the head: nothing left to do
    described = [_described(url) for url in two_urls]
    assert described[0] == described[1]
    assert len(described[0]) > 60
    own = {"version_table": "dray_version"}
    for url in two_urls:
        engine = create_engine(parse_url(url))
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection, opts=own), metadata) == []
        engine.dispose()


def _described(url: str) -> list[tuple[object, ...]]:
    """What the database itself says of its tables and indexes."""
    if url.endswith(".db"):
        query = (
            "SELECT m.type, m.name, p.* FROM sqlite_master m, pragma_table_xinfo(m.name) p ORDER BY 1, 2, 3"
        )
    else:
        query = (
            # Numbered anew: a column that a migration dropped leaves a gap in ordinal_position.
            "SELECT table_name, column_name, "
            "row_number() OVER (PARTITION BY table_name ORDER BY ordinal_position), data_type, is_nullable, "
            "column_default FROM information_schema.columns WHERE table_schema = 'public' "
            "UNION ALL SELECT indexname, indexdef, 0, '', '', '' FROM pg_indexes WHERE schemaname = 'public' "
            "UNION ALL SELECT conname, pg_get_constraintdef(oid), 0, '', '', '' FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace ORDER BY 1, 3, 2"
        )
    engine = create_engine(parse_url(url))
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.exec_driver_sql(query)]
    engine.dispose()
    return rows


def test_the_code_names_the_newest_migration() -> None:
    folder = Path(dray.store.__file__).parent / "migrations"
    assert ScriptDirectory(str(folder)).get_heads() == [REVISION]


def test_a_newer_schema_is_refused(two_urls: tuple[str, str]) -> None:
    open_store(two_urls[0]).close()
    engine = create_engine(parse_url(two_urls[0]))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE dray_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(StoreFatalError, match=r"\(9999\) is newer"):
        open_store(two_urls[0])


def _run(url: str, *statements: str) -> None:
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def test_a_database_that_another_program_migrates_takes_drays_tables_beside(url: str) -> None:
    """Prefect, too, keeps its version in Alembic's own table: dray took it for a newer dray's."""
    own = "INSERT INTO alembic_version VALUES ('bb38729c471a')"
    _run(url, "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)", own)
    open_store(url).close()
    assert revision_of(url) == REVISION
    open_store(url, create=False).close()
    engine = create_engine(parse_url(url))
    with engine.connect() as connection:
        kept = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    engine.dispose()
    assert kept == ["bb38729c471a"]


def test_another_programs_table_of_the_same_name_is_named(url: str) -> None:
    _run(url, "CREATE TABLE jobs (id INTEGER)")
    with pytest.raises(ConfigError, match=r"table 'jobs' that is another program's; name a database"):
        open_store(url)


@pytest.mark.parametrize(("made", "kept"), [(REVISION, True), ("0008", False)])
def test_a_version_in_alembics_own_table_moves_with_the_next_upgrade(url: str, made: str, kept: bool) -> None:
    """Until then the dray that made the store finds it there."""
    made_by_older(url, made)
    open_store(url).close()
    assert revision_of(url) == REVISION
    engine = create_engine(parse_url(url))
    with engine.connect() as connection:
        found = [inspect(connection).has_table(name) for name in ("alembic_version", "dray_version")]
    engine.dispose()
    assert found == [kept, not kept]


def test_opening_a_store_does_not_import_alembic_or_pandas(tmp_path: Path) -> None:
    code = (
        "import sys; from dray.store import open_store; open_store(sys.argv[1]).close(); "
        "print([name for name in ('alembic', 'pandas', 'psycopg', 'numpy') if name in sys.modules])"
    )
    for _ in range(2):  # a new store, then an old one
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "a.db")], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[]"


def test_opening_is_quick(tmp_path: Path) -> None:
    """By the seconds of the processor, and the best of five, so that a busy machine does not decide."""

    def seconds(path: Path) -> float:
        started = time.process_time()
        open_store(str(path)).close()
        return time.process_time() - started

    assert min(seconds(tmp_path / f"{n}.db") for n in range(5)) < 0.3
    assert min(seconds(tmp_path / "0.db") for _ in range(5)) < 0.05


@pytest.mark.parametrize("revision", sorted(COMPATIBLE))
def test_an_older_store_with_the_same_columns_is_used_as_it_is(
    url: str, revision: str, tmp_path: Path
) -> None:
    made_by_older(url, revision)
    newest = str(tmp_path / "newest.db")
    open_store(newest).close()
    if url.endswith(".db"):
        assert _columns(url) == _columns(newest)
    engine = create_engine(parse_url(url))
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    engine.dispose()
    assert {kind for kind, *_ in differences} <= {"add_index", "remove_index"}
    with open_store(url, create=False) as store, open_store(url, create=False, upgrade=True) as writer:
        assert store.list_jobs() == []
        assert writer.ended_jobs(older_than=0) == []
    assert revision_of(url) == revision
    with open_store(url) as store:
        ready_job(store)
    assert revision_of(url) == REVISION


def test_an_older_store_that_cannot_be_read_is_upgraded_by_who_writes(url: str) -> None:
    made_by_older(url, "0009")
    with pytest.raises(StoreFatalError, match=r"\(0009\) is of an older dray.*`dray resume` on"):
        open_store(url, create=False)
    assert revision_of(url) == "0009"
    with open_store(url, create=False, upgrade=True) as store:
        assert store.list_jobs() == []
    assert revision_of(url) == REVISION


def test_positions_of_an_older_jobs_shards_are_found_however_many_there_are(url: str) -> None:
    """A split shard begins where its first part does, and a part may be split again."""
    made_by_older(url, "0005")
    whole = [(number, "completed", None, 3, 10 * number) for number in range(4000)]
    split = [
        (0, "completed", None, 4, 0), (1, "split", None, 8, 40), (2, "pending", None, 2, 120),
        (3, "split", 1, 5, 40), (4, "completed", 1, 3, 90), (5, "pending", 3, 1, 40),
        (6, "pending", 3, 4, 50),
    ]  # fmt: skip
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        for key, shards in ((1, whole), (2, split)):
            _old_job(connection, key, shards)
    began = time.process_time()
    open_store(url).close()
    assert time.process_time() - began < 2
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT first_position FROM shards ORDER BY job_key, number")
        assert list(found.scalars()) == [*range(0, 12000, 3), 0, 4, 12, 4, 9, 4, 5]
    engine.dispose()


def _old_job(connection: Connection, key: int, shards: Sequence[tuple[object, ...]]) -> None:
    """One of revision 0005; of each shard its number, state, parent, rows and offset."""
    job = (
        "INSERT INTO jobs (job_key, job_id, state, cancel_requested, created_at, updated_at, fingerprint, "
        "settings, summary, info) VALUES (:key, :id, 'paused', :no, 0, 0, '{}', '{}', '{}', '{}')"
    )
    connection.execute(text(job), {"key": key, "id": f"job {key}", "no": False})
    shard = (
        'INSERT INTO shards (job_key, number, state, parent, "rows", "offset", length, first_index, '
        "last_index, uri) VALUES (:key, :number, :state, :parent, :rows, :offset, 10, 0, 0, 'spool')"
    )
    names = ("number", "state", "parent", "rows", "offset")
    connection.execute(text(shard), [{"key": key, **dict(zip(names, one, strict=True))} for one in shards])


def test_a_store_that_only_is_read_may_be_of_an_older_dray_and_read_only(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    made_by_older(str(path), "0010")
    before = path.read_bytes()
    path.chmod(0o444)
    with open_store(str(path), create=False) as store:
        assert store.list_jobs() == []
    assert path.read_bytes() == before


def _columns(path: str) -> list[tuple[object, ...]]:
    """Of all tables but the one that has the version, wherever that is kept."""
    query = (
        "SELECT m.name, p.* FROM sqlite_master m, pragma_table_xinfo(m.name) p "
        "WHERE m.type = 'table' AND m.name NOT IN ('alembic_version', 'dray_version')"
    )
    engine = create_engine(parse_url(path))
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.exec_driver_sql(query)]
    engine.dispose()
    return sorted(rows, key=str)
