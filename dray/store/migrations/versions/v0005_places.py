"""Where the last engine died under a suspect: the next is to be tried at another place."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column that older rows leave empty: a suspect's next crash is then its first."""
    op.add_column("shards", sa.Column("crashed_at", sa.String(), nullable=True))
