"""A shard is a range of positions of its spool, which may hold its rows in another order than the input."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Shards that were not split hold each row of the spool once. One that was begins where its first part does.
_FIRST_POSITIONS = """
    WITH parts AS (
        SELECT job_key, "offset",
            SUM("rows") OVER (PARTITION BY job_key ORDER BY "offset") - "rows" AS position
        FROM shards WHERE state <> 'split'
    )
    UPDATE shards SET first_position = parts.position FROM parts
    WHERE parts.job_key = shards.job_key AND parts."offset" = shards."offset"
"""


def upgrade() -> None:
    """Count the rows before each shard: its first index said nothing of those that ingest had refused."""
    op.execute("ALTER TABLE shards RENAME COLUMN first_index TO first_position")
    op.execute(sa.text(_FIRST_POSITIONS))
    op.execute("ALTER TABLE shards DROP COLUMN last_index")
