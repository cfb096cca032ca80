"""Indexes of attempts by node and by replica: a loss asks what was answered there, and who saw it."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """An attempt is given both before its first row, so its commits touch neither index."""
    op.create_index("ix_attempts_job_key_node", "attempts", ["job_key", "node"], unique=False)
    op.create_index("ix_attempts_job_key_replica", "attempts", ["job_key", "replica"], unique=False)
