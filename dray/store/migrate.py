"""Bringing a database's schema to what this code expects.

A store is opened by every process of a job, so the common case (already there) costs one SELECT
and does not import Alembic. A new database gets all tables at once, which a test proves equal to
running every migration.
"""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import Connection, inspect

from dray.errors import ConfigError, NoStoreError, StoreFatalError
from dray.store.database.connection import Database, Tx
from dray.store.database.schema import COMPATIBLE, REVISION, metadata

VERSION_TABLE = "dray_version"
# Where earlier versions of dray kept the version, beside their tables. Other programs keep theirs there, too.
_EARLIER_TABLE, _BESIDE_IT = "alembic_version", "shards"
_LOCK = 0x64726179  # "dray": PostgreSQL's advisory lock around schema changes


def ensure_schema(database: Database, *, create: bool, upgrade: bool) -> None:
    """Create or upgrade the tables where that is asked for, safely when several processes do it at once.

    An upgrade pauses the jobs of an older dray that run there. So who only reads makes none, nor who writes
    (``upgrade``) where the tables will do as they are.

    Raises:
        NoStoreError: nothing there, and ``create`` is false.
        StoreFatalError: the schema is of a newer dray, or of an older one and not to be upgraded.
        ConfigError: another program has a table of the same name there.
    """
    found = database.read(_revision)
    if found == REVISION or (found in COMPATIBLE and not create):
        return
    if found is None and not create:
        missing = NoStoreError(f"store {database.name}: no dray tables there; check the URL")
        missing.address = database.url
        raise missing
    if found is not None and found > REVISION:
        raise _newer(found, database.name)
    if not create and not upgrade:
        raise StoreFatalError(
            f"store {database.name}: its schema ({found}) is of an older dray, and this one ({REVISION}) "
            "cannot read it; `dray run` or `dray resume` on the store upgrades it, when no job of the older "
            "dray runs there"
        )
    database.write(lambda tx: _change(tx, database.name), long=True)


def _change(tx: Tx, name: str) -> None:
    if tx.dialect == "postgresql":
        tx.connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    found = _revision(tx)  # again, now that no other process can change it
    if found is None:
        _refuse_foreign(tx.connection, name)
        metadata.create_all(tx.connection, checkfirst=False)
        _stamp(tx.connection)
    elif found != REVISION:
        upgrade(tx.connection, found, name)


def _revision(tx: Tx) -> str | None:
    table = _version_table(tx.connection)
    if table is None:
        return None
    return tx.connection.exec_driver_sql(f"SELECT version_num FROM {table}").scalar()  # noqa: S608


def _version_table(connection: Connection) -> str | None:
    """The table that has the schema's version, if dray has tables in the database."""
    found = inspect(connection)
    if found.has_table(VERSION_TABLE):
        return VERSION_TABLE
    if not found.has_table(_EARLIER_TABLE) or not found.has_table(_BESIDE_IT):
        return None
    versions = connection.exec_driver_sql(f"SELECT version_num FROM {_EARLIER_TABLE}").scalars().all()  # noqa: S608
    ours = len(versions) == 1 and re.fullmatch(r"\d{4}", versions[0])
    return _EARLIER_TABLE if ours else None


def _refuse_foreign(connection: Connection, name: str) -> None:
    if foreign := sorted(set(inspect(connection).get_table_names()) & set(metadata.tables)):
        raise ConfigError(
            f"store {name}: the database has a table {foreign[0]!r} that is another program's; "
            "name a database of its own for dray"
        )


def _stamp(connection: Connection) -> None:
    connection.exec_driver_sql(
        f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, "
        f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
    )
    connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES ('{REVISION}')")  # noqa: S608


def upgrade(connection: Connection, found: str | None, name: str) -> None:
    """Run the migrations after ``found`` (None: all) in the connection's transaction."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    try:
        if found is not None:
            ScriptDirectory.from_config(config).get_revision(found)
    except CommandError:
        raise _newer(found, name) from None
    if _version_table(connection) == _EARLIER_TABLE:
        connection.exec_driver_sql(f"ALTER TABLE {_EARLIER_TABLE} RENAME TO {VERSION_TABLE}")
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    command.upgrade(config, "head")


def _newer(found: str | None, name: str) -> StoreFatalError:
    return StoreFatalError(
        f"store {name}: its schema ({found}) is newer than this dray's ({REVISION}); upgrade dray"
    )
