"""PostgreSQL databases that others have set up, and what lies between: poolers, defaults, encodings."""

from __future__ import annotations

import psycopg
import pytest

from dray.errors import ConfigError
from dray.store import open_store
from dray.store.database.connection import Tx
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.integration


def test_nothing_is_prepared_on_a_connection_that_a_pooler_may_give_to_another(postgres_url: str) -> None:
    """PgBouncer in transaction mode: psycopg's statement of the fifth use was on another server's side."""
    with open_store(postgres_url, connections=1) as store:
        for _ in range(8):
            store.find_job("job")
        prepared = store._database.read(
            lambda tx: tx.connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar()
        )
    assert prepared == 0


def test_behind_a_pooler_the_servers_connections_bound_no_job(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PgBouncer gives its clients process ids of its own; thousands of them share some connections."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda _: -1314422583))
    with open_store(postgres_url) as store:
        assert store.most_connections() is None


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_keep_every_answer_is_refused_before_there_is_one(
    postgres: PostgresServer, encoding: str
) -> None:
    """It failed at the first commit with such a character, after the engine had computed the rows."""
    name = f"dray_{encoding.lower()}"
    with postgres.connect() as connection:
        made = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
        connection.execute(made)
    with pytest.raises(ConfigError, match=f"{name} .*its encoding is {encoding}.*ENCODING 'UTF8'"):
        open_store(postgres.url(name))


def test_the_databases_own_level_of_isolation_is_not_ours(
    postgres: PostgresServer, postgres_url: str
) -> None:
    """Under a stricter one, claims beside each other fail, and a claim reads what was before it waited."""
    name = postgres_url.rsplit("/", 1)[1]
    with postgres.connect() as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    with open_store(postgres_url) as store:
        database = store._database
        found = [run(_isolation) for run in (database.read, database.write)]
    assert found == ["read committed"] * 2


def test_what_takes_long_has_time_whatever_the_role_is_given(
    postgres: PostgresServer, postgres_url: str
) -> None:
    """A change of the schema, and a deletion, failed again and again where the default was some seconds."""
    name = postgres_url.rsplit("/", 1)[1]
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    with postgres.connect() as connection:
        for limit in limits:
            connection.execute(f"ALTER DATABASE {name} SET {limit} = '2s'")

    def shown(tx: Tx) -> list[str]:
        return [tx.connection.exec_driver_sql(f"SHOW {limit}").scalar_one() for limit in limits]

    with open_store(postgres_url) as store:
        database = store._database
        assert database.write(shown, long=True) == database.read(shown, snapshot=True) == ["1h", "1h", "0"]


def _isolation(tx: Tx) -> str:
    return str(tx.connection.exec_driver_sql("SHOW transaction_isolation").scalar())
