"""The first tables: jobs, shards, results, attempts, notices, spans."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_Json = sa.JSON().with_variant(JSONB(), "postgresql")
_Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables, as ``dray/store/database/schema.py`` had them at this revision."""
    for create in (_jobs, _shards, _results, _attempts, _notices, _spans):
        create()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_key", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("driver_owner", sa.String(), nullable=True),
        sa.Column("driver_until", sa.Double(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("rejected", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("fingerprint", _Json, nullable=False),
        sa.Column("settings", _Json, nullable=False),
        sa.Column("summary", _Json, nullable=False),
        sa.Column("info", _Json, nullable=False),
        sa.PrimaryKeyConstraint("job_key", name="pk_jobs"),
        sa.UniqueConstraint("job_id", name="uq_jobs_job_id"),
    )


def _shards() -> None:
    op.create_table(
        "shards",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("interruptions", sa.Integer(), server_default="0", nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("inherited", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("done", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("failed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("first_index", sa.BigInteger(), nullable=False),
        sa.Column("last_index", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.job_key"], name="fk_shards_job_key"),
        sa.PrimaryKeyConstraint("job_key", "number", name="pk_shards"),
    )


def _results() -> None:
    op.create_table(
        "results",
        sa.Column("job_key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("idx", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("committed_at", sa.Double(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("queue_seconds", sa.Double(), nullable=False),
        sa.Column("first_token_seconds", sa.Double(), nullable=False),
        sa.Column("total_seconds", sa.Double(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("response", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("job_key", "idx", name="pk_results"),
    )


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("attempt_key", _Serial, autoincrement=True, nullable=False),
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=True),
        sa.Column("replica", sa.String(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("cause", sa.String(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("done", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("failed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lost_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.job_key"], name="fk_attempts_job_key"),
        sa.PrimaryKeyConstraint("attempt_key", name="pk_attempts"),
    )
    op.create_index("uq_attempts_job_key_shard_epoch", "attempts", ["job_key", "shard", "epoch"], unique=True)


def _notices() -> None:
    op.create_table(
        "notices",
        sa.Column("notice_key", _Serial, autoincrement=True, nullable=False),
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.job_key"], name="fk_notices_job_key"),
        sa.PrimaryKeyConstraint("notice_key", name="pk_notices"),
    )
    op.create_index("ix_notices_job_key", "notices", ["job_key"], unique=False)


def _spans() -> None:
    op.create_table(
        "spans",
        sa.Column("span_key", _Serial, autoincrement=True, nullable=False),
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("price", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.job_key"], name="fk_spans_job_key"),
        sa.PrimaryKeyConstraint("span_key", name="pk_spans"),
    )
    op.create_index(
        "uq_spans_job_key_node_phase_started", "spans", ["job_key", "node", "phase", "started"], unique=True
    )
