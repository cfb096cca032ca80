"""A shard task notes what it saw of a lost replica, and the driver what it judged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. What was lost before has none of it: its charges are all that is known."""
    evidence = sa.JSON().with_variant(JSONB(), "postgresql")
    op.add_column("attempts", sa.Column("evidence", evidence))
    op.add_column("replicas", sa.Column("verdict", sa.String()))
    op.add_column("replicas", sa.Column("event", sa.String()))
