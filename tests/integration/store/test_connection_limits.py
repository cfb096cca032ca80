"""How many connections PostgreSQL allows to a job, whatever sets the limit, and what a refusal says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import psycopg
import pytest

from dray.cluster import reach
from dray.cluster.reach import Needs
from dray.errors import NoConnectionError
from dray.failures.rules import STORE_PATIENCE
from dray.shard import task
from dray.shard.backoff import Backoff
from dray.shard.work import ShardWork
from dray.store import ConnectionLimit, open_store
from tests.support.postgres import PostgresServer
from tests.support.stores import ready_job

pytestmark = pytest.mark.integration


@pytest.fixture
def role(postgres: PostgresServer, postgres_url: str) -> Iterator[str]:
    """A user who is no superuser, in a database of its own: superusers have no such limits."""
    name = postgres_url.rsplit("/", 1)[1]
    with postgres.connect(name) as connection:
        connection.execute("CREATE ROLE limited LOGIN PASSWORD 'secret'")
        connection.execute(f"GRANT ALL ON DATABASE {name} TO limited")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO limited")
    yield f"postgresql://limited:secret@127.0.0.1:{postgres.port}/{name}"
    with postgres.connect(name) as connection:
        connection.execute("DROP OWNED BY limited")
        connection.execute("DROP ROLE limited")


def _limit(url: str) -> ConnectionLimit:
    with open_store(url, create=False) as store:
        found = store.most_connections()
    assert found is not None
    return found


@contextmanager
def _connected(url: str, count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(psycopg.connect(url))
        yield


def test_the_least_of_the_limits_binds_and_is_named(postgres: PostgresServer, role: str) -> None:
    """Managed servers say 500 connections, and give the role 20."""
    name = role.rsplit("/", 1)[1]
    assert _limit(role).by == "its max_connections"
    with postgres.connect() as connection:
        connection.execute("ALTER ROLE limited CONNECTION LIMIT 30")
        assert _limit(role) == ConnectionLimit(most=30, by="the CONNECTION LIMIT of the role")
        connection.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 25")
        assert _limit(role) == ConnectionLimit(most=25, by="the CONNECTION LIMIT of the database")
        superuser = _limit(postgres.url(name))
        assert superuser.by == "its max_connections"
        assert superuser.most > 30


def test_what_other_programs_hold_is_not_there_for_the_job(postgres: PostgresServer, role: str) -> None:
    before = _limit(role)
    with _connected(role, 5):
        assert _limit(role) == ConnectionLimit(most=before.most - 5, by=before.by, others=before.others + 5)


def test_they_never_leave_less_than_half_for_they_come_and_go(postgres: PostgresServer, role: str) -> None:
    with postgres.connect() as connection:
        connection.execute("ALTER ROLE limited CONNECTION LIMIT 12")
    with _connected(role, 9):
        found = _limit(role)
    assert (found.most, found.others) == (6, 9)


def test_other_jobs_of_dray_are_not_counted(postgres: PostgresServer, role: str) -> None:
    """They end; a shard task that finds no connection is started again."""
    before, another = _limit(role), postgres.url(role.rsplit("/", 1)[1])
    with _connected(f"{role}?application_name=dray", 5), _connected(f"{another}?application_name=dray", 5):
        assert _limit(role) == before


@pytest.fixture
def full_role(postgres: PostgresServer, role: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The role has no connection left. Those who open a store do not wait long for one."""
    for module in (reach, task):
        monkeypatch.setattr(module, "open_store", partial(open_store, patience=0.3))
    monkeypatch.setattr(reach, "PATIENCE", 0.3)
    with postgres.connect() as connection:
        connection.execute("ALTER ROLE limited CONNECTION LIMIT 2")
    with _connected(role, 2):
        yield role


def test_a_refusal_names_the_limit_and_no_user(full_role: str) -> None:
    with pytest.raises(NoConnectionError, match="the role has no connection left: raise its CON") as caught:
        open_store(full_role, patience=0.3)
    assert caught.value.exit_code == 2
    assert "limited" not in str(caught.value)


def test_a_shard_task_without_a_connection_ends_for_the_driver_to_start_it_again(
    postgres: PostgresServer, full_role: str
) -> None:
    """After 30 minutes of that it paused the whole job, whose other tasks had connections."""
    url = postgres.url(full_role.rsplit("/", 1)[1])
    with open_store(url) as store:
        lease = ready_job(store)
        work = ShardWork(job=lease, shard=store.shards("job")[0], store_url=full_role)
    backoff = Backoff(away_since=-STORE_PATIENCE)
    ended = task.try_once(work, task.RayReplicas(), backoff, lambda line: None)
    assert ended.how is task.Ended.NO_CONNECTION
    assert "the role has no connection left" in ended.message
    assert backoff.away_since is None


def test_a_stable_node_that_finds_no_connection_reaches_the_store(full_role: str) -> None:
    """The job was blocked, with the advice to give --store another address and password."""
    assert reach._reached("host", Needs(store_url=full_role, requests=None)).store is None
