"""A shard is a range of positions of its spool, which may hold its rows in another order than the input."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Shards that were not split hold each row of the spool once. One that was begins where its first part does:
# before both are the rows up to this offset, less those of the one that begins at it.
_FIRST_POSITIONS = """
    WITH held AS (
        SELECT job_key, number, "offset", CASE state WHEN 'split' THEN 0 ELSE "rows" END AS own FROM shards
    ), begun AS (
        SELECT job_key, number, SUM(own) OVER (PARTITION BY job_key ORDER BY "offset")
            - SUM(own) OVER (PARTITION BY job_key, "offset") AS position
        FROM held
    )
    UPDATE shards SET first_position = begun.position FROM begun
    WHERE begun.job_key = shards.job_key AND begun.number = shards.number
"""  # by the key: by the offset, SQLite would compare each of a job's shards with all others


def upgrade() -> None:
    """Count the rows before each shard: its first index said nothing of those that ingest had refused."""
    op.execute("ALTER TABLE shards RENAME COLUMN first_index TO first_position")
    op.execute(sa.text(_FIRST_POSITIONS))
    op.execute("ALTER TABLE shards DROP COLUMN last_index")
