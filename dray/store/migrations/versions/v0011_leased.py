"""An index of the shards that are leased, by replica: a claim of a place counts them for each replica."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Only rows of this state are in it, so that commits to a shard stay cheap."""
    leased = sa.text("state = 'leased'")
    op.create_index(
        "ix_shards_job_key_replica",
        "shards",
        ["job_key", "replica"],
        unique=False,
        postgresql_where=leased,
        sqlite_where=leased,
    )
