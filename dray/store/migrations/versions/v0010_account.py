"""Node time in whole microseconds, and the efficiency that finished runs reached."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """The first ``spans`` never held a row: nothing wrote them."""
    op.drop_table("spans")
    op.create_table(
        "spans",
        sa.Column("span_key", _Serial, autoincrement=True, nullable=False),
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("places", sa.Integer(), nullable=False),
        sa.Column("replica", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("micros", sa.BigInteger(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("price", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.job_key"], name="fk_spans_job_key"),
        sa.PrimaryKeyConstraint("span_key", name="pk_spans"),
    )
    op.create_index("ix_spans_job_key_epoch", "spans", ["job_key", "epoch"], unique=False)
    op.create_table(
        "efficiencies",
        sa.Column("efficiency_key", _Serial, autoincrement=True, nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("weights", sa.String(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("phi", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("start_seconds", sa.Double(), nullable=True),
        sa.Column("shape", sa.String(), nullable=True),
        sa.Column("output_tokens", sa.Double(), nullable=True),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("efficiency_key", name="pk_efficiencies"),
    )
    op.create_index("uq_efficiencies_job_epoch", "efficiencies", ["job", "epoch"], unique=True)
