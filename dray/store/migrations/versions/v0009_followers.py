"""Rows that get the outcome of another row, and how many rows got an outcome without a shard."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the counters. Jobs of before have neither such rows nor any to count."""
    op.create_table(
        "followers",
        sa.Column("job_key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("idx", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("leader", sa.BigInteger(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_key", "idx", name="pk_followers"),
    )
    for name in ("shared_done", "shared_failed"):
        op.add_column("jobs", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))
