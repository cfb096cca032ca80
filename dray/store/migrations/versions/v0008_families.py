"""A shard's rows may share a prefix with those of others, and a replica's cache hold it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Of shards that were cut before, nothing is known: 0."""
    for table in ("shards", "replicas"):
        op.add_column(table, sa.Column("family", sa.BigInteger(), nullable=False, server_default="0"))
