"""Why a replica does not work, beside its state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Older rows say nothing."""
    op.add_column("replicas", sa.Column("note", sa.Text(), nullable=True))
