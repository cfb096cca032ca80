"""Causes and budgets: what losses are charged to, which replicas there are, suspicion of shards, expiry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns that older rows fill with their defaults, and two tables."""
    op.add_column("jobs", sa.Column("expires_at", sa.Double(), nullable=True))
    op.add_column("shards", sa.Column("crashes", sa.Integer(), server_default="0", nullable=False))
    op.add_column("shards", sa.Column("replica", sa.String(), nullable=True))
    op.add_column("notices", sa.Column("kind", sa.String(), server_default="interruption", nullable=False))
    op.add_column("notices", sa.Column("event", sa.String(), server_default="", nullable=False))
    _replicas()
    _charges()


def _replicas() -> None:
    op.create_table(
        "replicas",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=True),
        sa.Column("host", sa.String(), nullable=True),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("max_num_seqs", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reserved", sa.Integer(), nullable=True),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.job_key"], name="fk_replicas_job_key"),
        sa.PrimaryKeyConstraint("job_key", "name", name="pk_replicas"),
    )


def _charges() -> None:
    op.create_table(
        "charges",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("budget", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("answered", sa.BigInteger(), nullable=False),
        sa.Column("charged_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.job_key"], name="fk_charges_job_key"),
        sa.PrimaryKeyConstraint("job_key", "budget", "scope", "event", name="pk_charges"),
    )
