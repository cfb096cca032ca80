"""The tables. ``migrations/`` makes the same ones step by step; a test compares the two.

Jobs have a string id for people and an integer key for rows. ``results`` has no foreign key:
its rows are written only behind the fence on ``shards``, and a check per row would cost more
than it could find. Nor has it a unique index on ``custom_id``: ids are often random, so every
commit would touch as many index pages as it has rows, and slow down as the table grows (measured
at 100,000 rows: a third of the rows per second, and falling). Ingest makes ids unique, the index
of a row stands for its id, and :meth:`Store.verify_counts` proves it before a job ends.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

REVISION = "0012"
"""The migration that these tables correspond to: the head of ``migrations/versions``."""

COMPATIBLE = frozenset(["0010", "0011"])
"""Earlier ones with all tables and columns of these, which lack at most an index: a test compares them."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

_Json = JSON().with_variant(JSONB(), "postgresql")
_Key = Integer
_Serial = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows only by INTEGER


def _job_key() -> Column[int]:
    return Column("job_key", _Key, ForeignKey("jobs.job_key"), nullable=False)


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default="0")


jobs = Table(
    "jobs",
    metadata,
    Column("job_key", _Key, primary_key=True, autoincrement=True),
    Column("job_id", String, nullable=False, unique=True),
    Column("state", String, nullable=False),
    Column("epoch", Integer, nullable=False, server_default="0"),
    Column("driver_owner", String),
    Column("driver_until", Double),
    Column("cancel_requested", Boolean, nullable=False),
    Column("reason", Text),
    Column("total", BigInteger),
    _count("rejected"),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("fingerprint", _Json, nullable=False),
    Column("settings", _Json, nullable=False),
    Column("summary", _Json, nullable=False),
    Column("info", _Json, nullable=False),
    Column("expires_at", Double),
    Column("cancelled_at", Double),
    _count("shared_done"),
    _count("shared_failed"),
)

_IS_LEASED = text("state = 'leased'")

shards = Table(
    "shards",
    metadata,
    Column("job_key", _Key, ForeignKey("jobs.job_key"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", String, nullable=False),
    Column("epoch", Integer, nullable=False, server_default="0"),
    Column("owner", String),
    Column("lease_until", Double),
    Column("parent", Integer),
    Column("interruptions", Integer, nullable=False, server_default="0"),
    Column("rows", BigInteger, nullable=False),
    Column("inherited", BigInteger, nullable=False, server_default="0"),
    _count("done"),
    _count("failed"),
    _count("prompt_tokens"),
    _count("cached_tokens"),
    _count("completion_tokens"),
    Column("first_position", BigInteger, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("uri", Text, nullable=False),
    Column("crashes", Integer, nullable=False, server_default="0"),
    Column("replica", String),
    Column("crashed_at", String),
    Column("family", BigInteger, nullable=False, server_default="0"),
    Index(
        "ix_shards_job_key_replica",
        "job_key",
        "replica",
        postgresql_where=_IS_LEASED,
        sqlite_where=_IS_LEASED,
    ),
)

results = Table(
    "results",
    metadata,
    Column("job_key", _Key, primary_key=True, autoincrement=False),
    Column("idx", BigInteger, primary_key=True, autoincrement=False),
    Column("shard", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("committed_at", Double, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("queue_seconds", Double, nullable=False),
    Column("first_token_seconds", Double, nullable=False),
    Column("total_seconds", Double, nullable=False),
    Column("custom_id", Text),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("response", Text),
)

FIELD_OF = {column.name: column.name for column in results.c} | {"idx": "index"}
"""The field of an outcome that a column of ``results`` holds; INDEX is a word of SQL."""

followers = Table(
    "followers",
    metadata,
    Column("job_key", _Key, primary_key=True, autoincrement=False),
    Column("idx", BigInteger, primary_key=True, autoincrement=False),
    Column("leader", BigInteger, nullable=False),
    Column("custom_id", Text, nullable=False),
)
"""Rows that wait for the outcome of another row of their job; one that has it is in ``results``."""

attempts = Table(
    "attempts",
    metadata,
    Column("attempt_key", _Serial, primary_key=True, autoincrement=True),
    _job_key(),
    Column("shard", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("owner", String, nullable=False),
    Column("node", String),
    Column("replica", String),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("cause", String),
    Column("detail", Text, nullable=False),
    _count("done"),
    _count("failed"),
    _count("prompt_tokens"),
    _count("completion_tokens"),
    _count("lost_tokens"),  # nothing writes it; it stays, for stores of earlier versions have it
    Column("evidence", _Json),
    Index("uq_attempts_job_key_shard_epoch", "job_key", "shard", "epoch", unique=True),
    Index("ix_attempts_job_key_node", "job_key", "node"),
    Index("ix_attempts_job_key_replica", "job_key", "replica"),
)

notices = Table(
    "notices",
    metadata,
    Column("notice_key", _Serial, primary_key=True, autoincrement=True),
    _job_key(),
    Column("node", String, nullable=False),
    Column("source", String, nullable=False),
    Column("action", String, nullable=False),
    Column("deadline", Double),
    Column("seen_at", Double, nullable=False),
    Column("kind", String, nullable=False, server_default="interruption"),
    Column("event", String, nullable=False, server_default=""),
    Index("ix_notices_job_key", "job_key"),
)

spans = Table(
    "spans",
    metadata,
    Column("span_key", _Serial, primary_key=True, autoincrement=True),
    _job_key(),
    Column("epoch", Integer, nullable=False),
    Column("node", String, nullable=False),
    Column("host", String, nullable=False),
    Column("place", Integer, nullable=False),
    Column("places", Integer, nullable=False),
    Column("replica", String, nullable=False),
    Column("phase", String, nullable=False),
    Column("started", Double, nullable=False),
    Column("micros", BigInteger, nullable=False),
    Column("gpus", Double, nullable=False),
    Column("price", BigInteger),
    Index("ix_spans_job_key_epoch", "job_key", "epoch"),
)

efficiencies = Table(
    "efficiencies",
    metadata,
    Column("efficiency_key", _Serial, primary_key=True, autoincrement=True),
    Column("job", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("model", String, nullable=False),
    Column("weights", String, nullable=False),
    Column("device", String, nullable=False),
    Column("engine", String, nullable=False),
    Column("version", String, nullable=False),
    Column("phi", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("start_seconds", Double),
    Column("shape", String),
    Column("output_tokens", Double),
    Column("measured_at", Double, nullable=False),
    Index("uq_efficiencies_job_epoch", "job", "epoch", unique=True),
)

replicas = Table(
    "replicas",
    metadata,
    Column("job_key", _Key, ForeignKey("jobs.job_key"), primary_key=True),
    Column("name", String, primary_key=True),
    Column("lane", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("node", String),  # all of its nodes, as in dray.places
    Column("host", String),
    Column("slots", Integer, nullable=False),
    Column("max_num_seqs", Integer, nullable=False, server_default="0"),
    Column("reserved", Integer),
    Column("changed_at", Double, nullable=False),
    Column("note", Text),
    Column("verdict", String),
    Column("event", String),
    Column("family", BigInteger, nullable=False, server_default="0"),
)

charges = Table(
    "charges",
    metadata,
    Column("job_key", _Key, ForeignKey("jobs.job_key"), primary_key=True),
    Column("budget", String, primary_key=True),
    Column("scope", String, primary_key=True),
    Column("event", String, primary_key=True),
    Column("cause", String, nullable=False),
    Column("answered", BigInteger, nullable=False),
    Column("charged_at", Double, nullable=False),
)
