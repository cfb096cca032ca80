"""Cancel: distinguishes a job that a user cancelled from one whose run was stopped."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add when a job was cancelled: unknown of older ones, which go on with the same command as before."""
    op.add_column("jobs", sa.Column("cancelled_at", sa.Double(), nullable=True))
